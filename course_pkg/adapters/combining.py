"""Combine LoRA adapters: a new one whose change is a weighted sum of others' changes."""

import math
import re
from collections.abc import Sequence

import torch
from torch import nn

from course_pkg.adapters.injection import adapter_layers, require_adapters, wrap
from course_pkg.adapters.lora import LoRAConfig, LoRALinear


def add_weighted_adapter(
    model: nn.Module, names: Sequence[str], weights: Sequence[float], new_name: str
) -> None:
    """Add an adapter whose delta_W is exactly the weighted sum of the given adapters' delta_W.

    It stacks the adapters: A = [w1·s1·A1; w2·s2·A2; …], B = [B1, B2, …], with scale 1, so the rank
    is the sum of the ranks. PEFT calls this combination_type="cat". The new adapter is not active.
    """
    if isinstance(names, str):
        raise TypeError(f"names must be a list of adapters, got {names!r}; put it into [ ]")
    require_adapters(model, names)
    if len(names) != len(weights) or not all(math.isfinite(weight) for weight in weights):
        raise ValueError(
            f"expected a finite weight for each of {len(names)} adapters, got weights {weights}"
        )
    layers = {
        name: layer
        for name, layer in adapter_layers(model).items()
        if set(names) & set(layer.configs)
    }
    if others := [name for name, layer in layers.items() if type(layer) is not LoRALinear]:
        layer = layers[others[0]]
        kind = f"{layer.method} on a module of type {type(layer.base).__name__}"
        raise TypeError(f"only LoRA on linear layers can be added; {others[0]} has {kind}")
    if any(config.bias != "none" for la in layers.values() for config in la.configs.values()):
        raise ValueError("an adapter with trained biases can't be added: the base has its biases")
    configs = {name: layer.configs[name] for layer in layers.values() for name in layer.configs}
    rank = sum(configs[name].rank for name in names)
    ranks = {module: sum(configs[name].rank_of(module) for name in names) for module in layers}
    pattern = {f"^{re.escape(module)}": own for module, own in ranks.items() if own != rank}
    patterns = {"rank_pattern": pattern, "alpha_pattern": pattern}
    config = LoRAConfig(rank, float(rank), target_modules=tuple(layers), **patterns)
    wrap(model, list(layers), config, new_name)
    with torch.no_grad():
        for module, layer in layers.items():
            A = layer.lora_A[new_name].zero_()
            B = layer.lora_B[new_name]
            start = 0
            for name, weight in zip(names, weights, strict=True):
                rows = slice(start, start + configs[name].rank_of(module))
                start = rows.stop
                if name in layer.configs:  # otherwise its rows of A and columns of B stay zero
                    A[rows] = weight * layer.scaling(name) * layer.lora_A[name]
                    B[:, rows] = layer.lora_B[name]
