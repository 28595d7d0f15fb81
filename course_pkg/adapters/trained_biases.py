"""Biases of the base that are trained with an adapter: PEFT's bias="all" and bias="lora_only".

They have no copies. Training changes the base's own biases, and loading an adapter replaces them.
So such an adapter is its model's only one, and nothing restores the biases: neither disabling,
unmerging nor removing the adapter. Merging doesn't change them. The adapter's file contains them.
Source: PEFT 0.21, tuners/tuners_utils.py. Chapter: adapters/peft.
"""

import warnings
from collections.abc import Mapping, Sequence

from torch import nn

from course_pkg.adapters.layer import AdapterConfig, AdapterLayer
from course_pkg.adapters.saved_module import SavedModule
from course_pkg.adapters.targets import adaptable_modules


def trained_biases(
    model: nn.Module, bias: str, targets: Sequence[str], saved: Sequence[str] = ()
) -> dict[str, nn.Parameter]:
    """The base's biases that an adapter trains, by their keys in its file (without the prefix).

    bias: "none"; "lora_only", the biases of `targets`; or "all", of every module. saved: the
    modules that are trained in full, whose copies have biases of their own.

    >>> model = nn.ModuleDict({"up": nn.Linear(2, 2), "norm": nn.LayerNorm(2)})
    >>> list(trained_biases(model, "all", ["up"]))
    ['up.base_layer.bias', 'norm.bias']
    """
    found: dict[str, nn.Parameter] = {}
    if bias == "none":
        return found
    for name, module in adaptable_modules(model).items():
        base = module.base if isinstance(module, AdapterLayer) else module
        parameter = dict(base.named_parameters(recurse=False)).get("bias")
        if parameter is None or any(f"{name}.".startswith(f"{whole}.") for whole in saved):
            continue
        if name in targets:
            found[f"{name}.base_layer.bias"] = parameter
        elif bias == "all":
            found[f"{name}.bias"] = parameter
    return found


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
