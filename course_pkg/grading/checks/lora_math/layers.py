"""Arrays, tensors and the reference layer, for the layer questions of `lora-math`.

Chapter: exercises.
"""

from typing import Any

import numpy as np
import torch
from torch import nn

from course_pkg.adapters.lora import LoRAConfig, LoRALinear


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normal float32 numbers of the given shape."""
    return rng.standard_normal(shape).astype("float32")


def tensor(value: Any) -> torch.Tensor | None:
    """A tensor of an `Array`, or None of None."""
    return None if value is None else torch.from_numpy(value.numpy())


def tensors(inputs: dict[str, Any]) -> dict[str, torch.Tensor | None]:
    """Every array of a case as a tensor."""
    names = ("x", "weight", "bias", "lora_A", "lora_B")
    return {name: tensor(inputs[name]) for name in names}


def reference_layer(inputs: dict[str, Any]) -> LoRALinear:
    """The reference LoRA layer with the case's weight, bias, A and B, in float32."""
    t = tensors(inputs)
    out_features, in_features = t["weight"].shape
    base = nn.Linear(in_features, out_features, bias=t["bias"] is not None)
    layer = LoRALinear(base)
    with torch.no_grad():
        base.weight.copy_(t["weight"])
        if t["bias"] is not None:
            base.bias.copy_(t["bias"])
        layer.add_adapter("default", LoRAConfig(rank=len(t["lora_A"]), alpha=inputs["alpha"]))
        layer.lora_A["default"].copy_(t["lora_A"])
        layer.lora_B["default"].copy_(t["lora_B"])
    return layer
