"""Adapters on a whole model: inject, switch, disable, merge and remove them, whatever the method.

Every function changes any nn.Module in place and finds its adapter layers. There is no
wrapper around the model, so its class, methods and module names stay the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from course_pkg.adapters.adalora import AdaLoRAConfig, AdaLoRALinear
from course_pkg.adapters.argument_checks import (
    require_adapter_name,
    require_generator,
    require_model,
)
from course_pkg.adapters.bottleneck import BottleneckConfig, BottleneckLinear
from course_pkg.adapters.dora import DoRAConfig, DoRALinear
from course_pkg.adapters.ia3 import IA3Config, IA3Linear
from course_pkg.adapters.layer import AdapterConfig, AdapterLayer
from course_pkg.adapters.lora import LoRAConfig, LoRAEmbedding, LoRALinear
from course_pkg.adapters.saved_module import (
    SavedModule,
    biases_of,
    find_saved_modules,
    require_no_shared_biases,
    warn_of_biases,
)
from course_pkg.adapters.targets import find_targets, replace_module

# The layers of each method, by the type of its config. The first that accepts a module wraps it.
LAYERS: dict[type[AdapterConfig], tuple[type[AdapterLayer], ...]] = {
    LoRAConfig: (LoRALinear, LoRAEmbedding),
    BottleneckConfig: (BottleneckLinear,),
    DoRAConfig: (DoRALinear,),
    AdaLoRAConfig: (AdaLoRALinear,),
    IA3Config: (IA3Linear,),
}


def inject(
    model: nn.Module,
    config: AdapterConfig,
    adapter_name: str = "default",
    *,
    generator: torch.Generator | None = None,
) -> list[str]:
    """Add an adapter to the modules that the config names; return their names.

    Every other parameter is frozen. The model's output stays the same. A model's first adapter
    becomes active; activate later ones with `set_adapter`. After an error, the model is unchanged.

    Args:
        config: its type chooses the method.
        generator: draws the weights, layer by layer; by default a new generator with seed 0.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> inject(model, LoRAConfig(rank=2))
    ['0', '2']
    >>> sum(p.numel() for p in trainable_parameters(model).values())  # 2·(4+8) + 2·(8+2)
    44
    """
    kinds = layer_types(config)
    names = find_targets(model, config.target_modules, kinds, config.modules_to_save)
    config.check_modules(names)
    config.check_new(names)
    saved = find_saved_modules(model, config.modules_to_save, names)
    wrap(model, names, config, adapter_name, generator, saved)
    return names


def layer_types(config: AdapterConfig) -> tuple[type[AdapterLayer], ...]:
    """The layer classes of the config's method."""
    if type(config) not in LAYERS:
        known = " or ".join(kind.__name__ for kind in LAYERS)
        raise TypeError(f"config must be a {known}, got {config!r:.80}")
    return LAYERS[type(config)]


def wrap(
    model: nn.Module,
    names: Sequence[str],
    config: AdapterConfig,
    adapter_name: str,
    generator: torch.Generator | None = None,
    saved: Sequence[str] = (),
) -> None:
    """Add an adapter to exactly the named modules, and copies of the `saved` modules."""
    if adapter_name in adapter_names(model):
        raise ValueError(f"the model already has an adapter {adapter_name!r}; use another name")
    _require_unmerged(model)
    require_adapter_name(adapter_name)
    require_no_shared_biases(adapter_layers(model), config, adapter_name)
    require_generator(generator)
    if isinstance(model, AdapterLayer):
        raise TypeError("this model has an adapter; inject into its base model")
    generator = generator or torch.Generator().manual_seed(0)
    active = active_adapters(model) or [adapter_name]
    for name in names:
        layer = _wrapped(model, name, layer_types(config))
        layer.add_adapter(adapter_name, config, generator=generator)
    for name in saved:
        _wrapped(model, name, (SavedModule,)).add_adapter(adapter_name, config)
    model.requires_grad_(False)
    set_adapter(model, active)  # gives the active adapters their gradients back


def _wrapped(model: nn.Module, name: str, kinds: Sequence[type[AdapterLayer]]) -> AdapterLayer:
    """The named module's adapter layer, which takes its place everywhere if there is none yet."""
    module = model.get_submodule(name)
    if isinstance(module, AdapterLayer):
        return module
    layer = next(kind for kind in kinds if kind.accepts(module))(module, module_name=name)
    layer.train(module.training)
    replace_module(model, module, layer)
    return layer


def adapter_layers(model: nn.Module) -> dict[str, AdapterLayer]:
    """Every adapter layer of the model by its module name, in the model's order."""
    modules = require_model(model).named_modules()
    return {name: layer for name, layer in modules if isinstance(layer, AdapterLayer)}


def layers_with(
    model: nn.Module, adapter_name: str, kind: type[AdapterLayer] = AdapterLayer
) -> dict[str, AdapterLayer]:
    """The layers of a kind that have the named adapter, by module name."""
    return {
        name: layer
        for name, layer in adapter_layers(model).items()
        if isinstance(layer, kind) and adapter_name in layer.configs
    }


def adapter_names(model: nn.Module) -> list[str]:
    """The names of all adapters in the model, oldest first."""
    layers = adapter_layers(model).values()
    return list(dict.fromkeys(name for layer in layers for name in layer.configs))


def active_adapters(model: nn.Module) -> list[str]:
    """The names of the active adapters."""
    layers = adapter_layers(model).values()
    return list(dict.fromkeys(name for layer in layers for name in layer.active))


def set_adapter(model: nn.Module, names: str | Sequence[str]) -> None:
    """Activate one adapter, or several whose effects add up; freeze and deactivate the others."""
    names = [names] if isinstance(names, str) else list(names)
    require_adapters(model, names)
    _require_unmerged(model)
    layers = adapter_layers(model)
    for layer in layers.values():
        layer.set_active(names)
    for name in adapter_names(model):
        for bias in biases_of(model, layers, name).values():
            bias.requires_grad_(name in names)


@contextmanager
def disable_adapters(model: nn.Module) -> Iterator[None]:
    """Disable every adapter within a `with` block; the model then computes what the base does.

    Warns if biases of the base were trained: as in PEFT, they stay as they are (`trained_biases`).
    """
    _require_unmerged(model)
    layers = adapter_layers(model)
    warn_of_biases(model, layers)
    before = {name: layer.disabled for name, layer in layers.items()}
    try:
        for layer in layers.values():
            layer.disabled = True
        yield
    finally:
        for name, layer in layers.items():
            layer.disabled = before[name]


def merge_adapters(model: nn.Module) -> None:
    """Add the active adapters to the weight of every adapted layer, or to none after an error.

    If the weight is tied to another module's, the other module keeps the original weight.
    """
    merge_all({name: la for name, la in adapter_layers(model).items() if not la.merged})


def merge_all(unmerged: Mapping[str, AdapterLayer]) -> None:
    """Merge these layers, given by module name, or none of them if one can't be merged."""
    for name, layer in unmerged.items():
        try:
            layer.merge()
        except Exception as error:
            for other in unmerged.values():
                other.unmerge()
            error.add_note(f"in module {name}")
            raise


def unmerge_adapters(model: nn.Module) -> None:
    """Restore the original weight of every merged layer, bit for bit."""
    for layer in adapter_layers(model).values():
        layer.unmerge()


def remove_adapters(model: nn.Module) -> None:
    """Replace every adapter layer with its base, which includes the adapters if they are merged.

    After merge_adapters, the result is an ordinary model that you can save or serve.
    """
    for layer in adapter_layers(model).values():
        replace_module(model, layer, layer.without_adapters())


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter that requires a gradient, by name."""
    return {name: p for name, p in require_model(model).named_parameters() if p.requires_grad}


def _require_unmerged(model: nn.Module) -> None:
    if any(layer.merged for layer in adapter_layers(model).values()):
        raise RuntimeError("adapters are merged; call unmerge_adapters(model) first")


def require_adapters(model: nn.Module, names: Sequence[str]) -> None:
    """Raise ValueError unless the list is not empty and the model has all its adapters."""
    known = adapter_names(model)
    if not names or not set(names) <= set(known):
        raise ValueError(f"expected one or more of the adapters {known}, got {list(names)}")
