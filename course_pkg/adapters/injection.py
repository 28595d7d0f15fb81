"""LoRA on a whole model: inject, switch, disable, combine, merge and remove adapters.

Every function changes any nn.Module in place and finds its LoRALinear layers. There is no
wrapper around the model, so its class, methods and module names stay the same.
Chapter: adapters/lora.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from course_pkg.adapters.lora import LoRAConfig, LoRALinear
from course_pkg.adapters.targets import find_targets, require_model


def inject_lora(
    model: nn.Module,
    config: LoRAConfig,
    adapter_name: str = "default",
    *,
    generator: torch.Generator | None = None,
) -> list[str]:
    """Add a LoRA adapter to the modules that the config names; return their names.

    Freezes every other parameter. The model's output stays the same, because B starts at zero.
    A model's first adapter becomes active; activate later ones with `set_adapter`, as in PEFT.
    generator: draws A, layer by layer; by default a new generator with seed 0.
    Raises ValueError or TypeError if a target is unknown or not an nn.Linear, or if the adapter
    already exists, and RuntimeError while merged; the model is then unchanged.
    Source: Hu et al. 2021, section 4.2.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> inject_lora(model, LoRAConfig(rank=2))
    ['0', '2']
    >>> sum(p.numel() for p in trainable_parameters(model).values())  # 2·(4+8) + 2·(8+2)
    44
    """
    if not isinstance(config, LoRAConfig):
        raise TypeError(f"config must be a LoRAConfig, got {config!r:.80}")
    return wrap(model, find_targets(model, config.target_modules), config, adapter_name, generator)


def wrap(
    model: nn.Module,
    names: Sequence[str],
    config: LoRAConfig,
    adapter_name: str,
    generator: torch.Generator | None = None,
) -> list[str]:
    """Add an adapter to exactly the named nn.Linear modules, as inject_lora does."""
    present = lora_layers(model)
    if adapter_name in adapter_names(model):
        raise ValueError(f"the model already has an adapter {adapter_name!r}; use another name")
    if any(layer.merged for layer in present.values()):
        raise RuntimeError("adapters are merged; call unmerge_adapters(model) first")
    LoRALinear(
        nn.Linear(1, 1, device="meta"), config, adapter_name
    )  # raises if the name is invalid
    if generator is not None and getattr(generator, "device", None) != torch.device("cpu"):
        raise TypeError(f"generator must be a torch.Generator on the CPU, got {generator!r:.80}")
    generator = generator or torch.Generator().manual_seed(0)
    active = active_adapters(model) or [adapter_name]
    for name in names:
        layer = present.get(name)
        if layer is None:
            parent, _, leaf = name.rpartition(".")
            layer = LoRALinear(model.get_submodule(name))
            layer.train(layer.base.training)
            setattr(model.get_submodule(parent), leaf, layer)
        layer.add_adapter(adapter_name, config, generator=generator)
    freeze_base(model)
    set_adapter(model, active)
    return list(names)


def lora_layers(model: nn.Module) -> dict[str, LoRALinear]:
    """Every LoRALinear of the model by its module name, in the model's order."""
    modules = require_model(model).named_modules()
    return {name: layer for name, layer in modules if isinstance(layer, LoRALinear)}


def adapter_names(model: nn.Module) -> list[str]:
    """The names of all adapters in the model, oldest first."""
    layers = lora_layers(model).values()
    return list(dict.fromkeys(name for layer in layers for name in layer.configs))


def active_adapters(model: nn.Module) -> list[str]:
    """The names of the active adapters."""
    layers = lora_layers(model).values()
    return list(dict.fromkeys(name for layer in layers for name in layer.active))


def set_adapter(model: nn.Module, names: str | Sequence[str]) -> None:
    """Activate one adapter, or several whose effects add up; freeze and deactivate the others.

    Raises ValueError for a name that no layer has, RuntimeError while merged.

    >>> model = nn.Sequential(nn.Linear(4, 4))
    >>> for name in ("law", "poetry"):
    ...     _ = inject_lora(model, LoRAConfig(rank=1), name)
    >>> set_adapter(model, "poetry"); active_adapters(model)
    ['poetry']
    """
    names = [names] if isinstance(names, str) else list(names)
    _require_adapters(model, names)
    if any(layer.merged for layer in lora_layers(model).values()):
        raise RuntimeError("adapters are merged; call unmerge_adapters(model) before switching")
    for layer in lora_layers(model).values():
        layer.set_active(names)


@contextmanager
def disable_adapters(model: nn.Module) -> Iterator[None]:
    """Disable every adapter within a `with` block; the model then computes what the base does.

    Raises RuntimeError while merged.

    >>> model = nn.Sequential(LoRALinear(nn.Linear(2, 2), LoRAConfig(rank=1)))
    >>> with disable_adapters(model):
    ...     model[0].disabled
    True
    """
    layers = lora_layers(model).values()
    if any(layer.merged for layer in layers):
        raise RuntimeError("adapters are merged; call unmerge_adapters(model) to get the base back")
    before = [layer.disabled for layer in layers]
    try:
        for layer in layers:
            layer.disabled = True
        yield
    finally:
        for layer, disabled in zip(layers, before, strict=True):
            layer.disabled = disabled


def add_weighted_adapter(
    model: nn.Module, names: Sequence[str], weights: Sequence[float], new_name: str
) -> None:
    """Add an adapter whose delta_W is exactly the weighted sum of the given adapters' delta_W.

    It stacks the adapters: A = [w1·s1·A1; w2·s2·A2; …], B = [B1, B2, …], with scale 1, so the rank
    is the sum of the ranks. PEFT calls this combination_type="cat". (Its "linear" adds the A's and
    the B's, which gives cross terms B1·A2.) Activate the new adapter with `set_adapter`.
    Raises ValueError for unknown names, an existing new_name, or weights that do not fit.

    >>> model = nn.Sequential(LoRALinear(nn.Linear(2, 2), LoRAConfig(rank=1), "a"))
    >>> _ = inject_lora(model, LoRAConfig(rank=2), "b")
    >>> add_weighted_adapter(model, ["a", "b"], [0.5, -1.0], "mix"); model[0].configs["mix"].rank
    3
    """
    if isinstance(names, str):
        raise TypeError(f"names must be a list of adapters, got {names!r}; put it into [ ]")
    _require_adapters(model, names)
    if len(names) != len(weights) or not all(math.isfinite(weight) for weight in weights):
        raise ValueError(
            f"expected a finite weight for each of {len(names)} adapters, got weights {weights}"
        )
    layers = {
        name: layer for name, layer in lora_layers(model).items() if set(names) & set(layer.configs)
    }
    configs = {name: layer.configs[name] for layer in layers.values() for name in layer.configs}
    rank = sum(configs[name].rank for name in names)
    config = LoRAConfig(rank=rank, alpha=float(rank), target_modules=tuple(layers))
    wrap(model, list(layers), config, new_name)
    with torch.no_grad():
        for layer in layers.values():
            A, B = layer.lora_A[new_name].zero_(), layer.lora_B[new_name]
            start = 0
            for name, weight in zip(names, weights, strict=True):
                rows = slice(start, start := start + configs[name].rank)
                if name in layer.configs:  # otherwise its rows of A and columns of B stay zero
                    A[rows] = weight * layer.configs[name].scaling * layer.lora_A[name]
                    B[:, rows] = layer.lora_B[name]


def merge_adapters(model: nn.Module) -> None:
    """Add the active adapters to the weight of every adapted layer; a second call does nothing.

    If the weight is tied to another module's, the other module keeps the original weight.
    Raises ValueError if a sum is not finite; every layer then stays as it was.

    >>> model = nn.Sequential(LoRALinear(nn.Linear(2, 2), LoRAConfig(rank=1)))
    >>> merge_adapters(model); model[0].merged
    True
    """
    unmerged = {name: layer for name, layer in lora_layers(model).items() if not layer.merged}
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
    for layer in lora_layers(model).values():
        layer.unmerge()


def remove_lora(model: nn.Module) -> None:
    """Replace every LoRALinear with its nn.Linear, which includes the adapters if they are merged.

    After merge_adapters, the result is an ordinary model that you can save or serve.

    >>> model = nn.Sequential(LoRALinear(nn.Linear(2, 2), LoRAConfig(rank=1)))
    >>> remove_lora(model); model[0]
    Linear(in_features=2, out_features=2, bias=True)
    """
    for name, layer in lora_layers(model).items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, layer.base)


def freeze_base(model: nn.Module) -> None:
    """Turn off gradients for every parameter outside the adapters."""
    adapter_ids = {
        id(parameter)
        for layer in lora_layers(model).values()
        for parameter in (*layer.lora_A.values(), *layer.lora_B.values())
    }
    for parameter in model.parameters():
        if id(parameter) not in adapter_ids:
            parameter.requires_grad_(False)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter that requires a gradient, by name."""
    return {name: p for name, p in require_model(model).named_parameters() if p.requires_grad}


def _require_adapters(model: nn.Module, names: Sequence[str]) -> None:
    known = adapter_names(model)
    if not names or not set(names) <= set(known):
        raise ValueError(f"expected one or more of the adapters {known}, got {list(names)}")
