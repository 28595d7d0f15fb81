"""Merge adapters into 4-bit weights, which rounds them again, and measure what it costs.

`merge_adapters` refuses quantized weights: the merged weight must be rounded to 4 bits again, and
the rounding error can be larger than the change that the adapter learned. Here it is done on
request. To keep the adapter exact, keep it separate, or merge it into dequantized weights.
Chapter: adapters/qlora.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_pkg.adapters.injection import adapter_layers
from course_pkg.adapters.layer import AdapterLayer
from course_pkg.adapters.qlora import Linear4bit
from course_pkg.adapters.targets import replace_module


@dataclass(frozen=True)
class MergeError:
    """How far the output after merging is from the output before, on one input.

    of_output: ‖error‖ / ‖output‖. of_change: ‖error‖ / ‖what the adapters add to the output‖;
    1 means that the error is as large as the adapters' effect.
    """

    of_output: float
    of_change: float


def requantized(layer: AdapterLayer) -> Linear4bit:
    """A 4-bit layer with the active adapters in its weight: dequantize, add, quantize again.

    The adapter layer itself stays as it is. Raises TypeError if its base is not a Linear4bit,
    ValueError if the sum is not finite, RuntimeError while the adapters are disabled.

    >>> from course_pkg.adapters.lora import LoRAConfig, LoRALinear
    >>> layer = LoRALinear(Linear4bit(nn.Linear(64, 8)), LoRAConfig(rank=2))
    >>> requantized(layer).weight.dtype
    torch.uint8
    """
    if not isinstance(layer, AdapterLayer) or not isinstance(layer.base, Linear4bit):
        base = type(getattr(layer, "base", layer)).__name__
        raise TypeError(f"expected an adapter layer over a Linear4bit, got one over {base}")
    if layer.disabled:
        raise RuntimeError("the adapters are disabled; leave disable_adapters() before merging")
    return layer.base.with_weight(layer.merged_weight()) if layer.active else layer.base


def merge_quantized(model: nn.Module) -> None:
    """Merge the active adapters into every layer and remove them, where weights are in 4 bits too.

    Layers that are not quantized are merged exactly. Raises what `requantized` and
    `merge_adapters` raise; the model is then unchanged.

    >>> from course_pkg.adapters.injection import inject
    >>> from course_pkg.adapters.lora import LoRAConfig
    >>> from course_pkg.adapters.qlora import quantize_model
    >>> model = nn.Sequential(nn.Linear(64, 8))
    >>> names = quantize_model(model), inject(model, LoRAConfig(rank=2))
    >>> merge_quantized(model); type(model[0]).__name__
    'Linear4bit'
    """
    layers = adapter_layers(model)
    exact = {name: la for name, la in layers.items() if not isinstance(la.base, Linear4bit)}
    merged = {name: requantized(la) for name, la in layers.items() if name not in exact}
    try:
        for layer in exact.values():
            layer.merge()
    except Exception:
        for layer in exact.values():
            layer.unmerge()
        raise
    for name, layer in layers.items():
        replace_module(model, layer, merged.get(name) or layer.without_adapters())


@torch.no_grad()
def merge_error(layer: AdapterLayer, x: Tensor) -> MergeError:
    """The error that merging causes in the layer's output for the input x, (..., in_features).

    Raises what `requantized` raises, and ValueError if no adapter changes the output.

    >>> from course_pkg.adapters.lora import LoRAConfig, LoRALinear
    >>> layer = LoRALinear(Linear4bit(nn.Linear(64, 8)), LoRAConfig(rank=2))
    >>> merge_error(layer, torch.ones(1, 64))
    Traceback (most recent call last):
    ...
    ValueError: the adapters do not change the output, so there is nothing to merge
    """
    merged = requantized(layer)
    before, base = (each(x).double() for each in (layer, layer.base))
    if not (change := (before - base).norm()):
        raise ValueError("the adapters do not change the output, so there is nothing to merge")
    error = (merged(x).double() - before).norm()
    return MergeError((error / before.norm()).item(), (error / change).item())
