"""What of the base is trained in full beside an adapter: whole modules, and biases.

Modules, such as a new classification head, are those that end with an entry of `modules_to_save`,
also within a word: "norm" finds "model.norm" and "layers.0.input_layernorm". Biases, by bias="all"
and bias="lora_only", have no copies: training changes the base's own, and nothing restores them. So
such an adapter is its model's only one. Source: PEFT 0.21, tuners/tuners_utils.py.
"""

import copy
import difflib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.adapters.layer import AdapterConfig, AdapterLayer
from course_pkg.adapters.targets import adaptable_modules


class SavedModule(AdapterLayer):
    """A frozen module, and for each adapter a trainable copy of it that replaces it."""

    method = "training in full (modules_to_save)"
    wraps = "a module with parameters"
    config_type = None
    one_active = True

    def __init__(
        self,
        base: nn.Module,
        config: AdapterConfig | None = None,
        adapter_name: str = "default",
        *,
        module_name: str = "",
    ) -> None:
        self._merged = False
        super().__init__(base, module_name=module_name)
        self.copies = nn.ModuleDict()
        if config is not None:
            self.add_adapter(adapter_name, config)

    @classmethod
    def accepts(cls, module: nn.Module) -> bool:
        return not isinstance(module, AdapterLayer) and has_parameters(module)

    def add_weights(self, name: str, config: Any, generator: torch.Generator) -> None:
        self.copies[name] = copy.deepcopy(self.base)

    def weights_of(self, name: str) -> dict[str, nn.Parameter]:
        return dict(self.copies[name].named_parameters())

    def state_of(self, name: str) -> dict[str, Tensor]:
        """One adapter's copy as its file has it: parameters and buffers."""
        return self.copies[name].state_dict(keep_vars=True)

    @property
    def in_use(self) -> nn.Module:
        """The active copy, or the original where none is active."""
        return self.base if self.disabled or not self.active else self.copies[self.active[0]]

    @property
    def weight(self) -> nn.Parameter:
        return self.in_use.weight

    @property
    def bias(self) -> nn.Parameter | None:
        return self.in_use.bias

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.in_use(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Some models read attributes of their modules; give them the ones of the module in use."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "in_use" or "copies" not in self.__dict__.get("_modules", ()):
                raise  # while this module is being built
            return getattr(self.in_use, name)

    @property
    def merged(self) -> bool:
        """Whether removing the adapters leaves the active copy."""
        return self._merged

    def merge(self) -> None:
        """Let the active copy stay when the adapters are removed."""
        if self.disabled:
            raise RuntimeError("the adapters are disabled; leave disable_adapters() before merging")
        self._merged = bool(self.active)

    def unmerge(self) -> None:
        self._merged = False

    def without_adapters(self) -> nn.Module:
        return self.copies[self.active[0]] if self.merged else self.base


def find_saved_modules(
    model: nn.Module, endings: Sequence[str], targets: Sequence[str]
) -> list[str]:
    """The names of the modules to train in full: those with parameters that end with an entry."""
    modules = adaptable_modules(model)
    for ending in endings:
        selected = [module for name, module in modules.items() if name.endswith(ending)]
        if not selected:
            close = difflib.get_close_matches(ending, {n.rpartition(".")[2] for n in modules})
            hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise ValueError(f"modules_to_save {ending!r} matches no module{hint}")
        if not any(map(has_parameters, selected)):
            raise ValueError(f"modules_to_save {ending!r} has no parameters")
    names = saved_module_names(model, endings)
    for name in names:
        for other in [*targets, *(n for n in names if n != name)]:
            if f"{other}.".startswith(f"{name}."):
                raise ValueError(
                    f"modules_to_save {name!r} is or contains {other!r}, "
                    "which has an adapter; it can have only one"
                )
        if isinstance(modules[name], AdapterLayer) and not isinstance(modules[name], SavedModule):
            raise ValueError(f"modules_to_save {name!r} has an adapter; it can have only one")
        if not all(p.is_floating_point() for p in modules[name].parameters()):
            raise ValueError(f"modules_to_save {name!r} is quantized, so it can't be trained")
    return names


def saved_module_names(model: nn.Module, endings: Sequence[str]) -> list[str]:
    """The names of the modules with parameters that end with an entry of modules_to_save."""
    return [
        name
        for name, module in adaptable_modules(model).items()
        if name.endswith(tuple(endings)) and has_parameters(module)
    ]


def has_parameters(module: nn.Module) -> bool:
    """Whether the module or one inside it has a parameter."""
    return next(module.parameters(), None) is not None


def trained_biases(
    model: nn.Module, bias: str, targets: Sequence[str], saved: Sequence[str] = ()
) -> dict[str, nn.Parameter]:
    """The base's biases that an adapter trains, by their keys in its file (without the prefix).

    Args:
        bias: "none"; "lora_only", the biases of `targets`; or "all", of every module.
        saved: the modules that are trained in full, whose copies have biases of their own.

    >>> model = nn.ModuleDict({"up": nn.Linear(2, 2), "norm": nn.LayerNorm(2)})
    >>> list(trained_biases(model, "all", ["up"]))
    ['up.base_layer.bias', 'norm.bias']
    """
    biases: dict[str, nn.Parameter] = {}
    if bias == "none":
        return biases
    for name, module in adaptable_modules(model).items():
        base = module.base if isinstance(module, AdapterLayer) else module
        parameter = dict(base.named_parameters(recurse=False)).get("bias")
        if parameter is None or any(f"{name}.".startswith(f"{whole}.") for whole in saved):
            continue
        if name in targets:
            biases[f"{name}.base_layer.bias"] = parameter
        elif bias == "all":
            biases[f"{name}.bias"] = parameter
    return biases


def biases_of(
    model: nn.Module, layers: Mapping[str, AdapterLayer], adapter_name: str
) -> dict[str, nn.Parameter]:
    """The biases that an adapter in the model trains, as `trained_biases` returns them."""
    having = {name: layer for name, layer in layers.items() if adapter_name in layer.configs}
    saved = [name for name, layer in having.items() if isinstance(layer, SavedModule)]
    targets = [name for name in having if name not in saved]
    biases = {layer.configs[adapter_name].bias for layer in having.values()}
    return trained_biases(model, next(iter(biases), "none"), targets, saved)


def require_no_shared_biases(
    layers: Mapping[str, AdapterLayer], config: AdapterConfig, adapter_name: str
) -> None:
    """Raise ValueError if a new adapter and one in the model would share trained biases."""
    configs = {name: other for layer in layers.values() for name, other in layer.configs.items()}
    if not configs:
        return
    for name, other in {**configs, adapter_name: config}.items():
        if other.bias != "none":
            raise ValueError(
                f"adapter {name!r} trains biases of the base (bias={other.bias!r}), which every "
                "other adapter would get too; give it a model of its own"
            )


def warn_of_biases(model: nn.Module, layers: Mapping[str, AdapterLayer]) -> None:
    """Warn if the model has trained biases, before its adapters are disabled, as in PEFT."""
    for name in {name for layer in layers.values() for name in layer.configs}:
        if biases_of(model, layers, name):
            warnings.warn(
                f"adapter {name!r} trained biases of the base; they stay while it is disabled, so "
                "the output differs from the original base",
                stacklevel=4,
            )
