"""QLoRA: quantize a model's linear layers to 4 bits, and merge adapters into 4-bit weights.

Activations, biases, norms and embeddings are not quantized. `merge_adapters` refuses quantized
weights: the merged weight must be rounded to 4 bits again, and the rounding error can be larger
than the change that the adapter learned. `merge_quantized` does it on request, and `merge_error`
measures it.

Source: Dettmers et al. 2023 (QLoRA), section 3. Chapter: adapters/qlora.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from course_pkg.acceleration.quantization.blockwise import BLOCK_SIZE
from course_pkg.adapters.argument_checks import require_model
from course_pkg.adapters.injection import adapter_layers, merge_all
from course_pkg.adapters.layer import AdapterLayer
from course_pkg.adapters.linear4bit import Linear4bit, is_quantized, require_quantizable
from course_pkg.adapters.targets import matches, replace_module


def quantize_model(
    model: nn.Module,
    book: str = "nf4",
    block_size: int = BLOCK_SIZE,
    *,
    double: bool = True,
    compute_dtype: torch.dtype | None = None,
    skip: Sequence[str] | None = None,
) -> list[str]:
    """Replace the nn.Linear layers of a model with 4-bit ones; return their names.

    skip: name endings of layers to leave as they are; by default the output head of a transformers
    model and its last module, such as a classifier. Modules that transformers keeps in fp32 are
    left out in any case. The other arguments are as in `Linear4bit`. Inject adapters afterwards.
    Raises ValueError if a layer is quantized already, has adapters or does not fit, if `skip`
    matches nothing, or if there is nothing to quantize; the model is then unchanged.
    Source: Dettmers et al. 2023, section 3.

    >>> model = nn.ModuleDict({"up": nn.Linear(64, 128), "norm": nn.LayerNorm(128)})
    >>> quantize_model(model)
    ['up']
    """
    if isinstance(skip, str):
        raise TypeError(f"skip must be a list of strings, got {skip!r}; write [{skip!r}]")
    left_out = _left_out(require_model(model)) if skip is None else list(skip)
    fp32 = list(getattr(model, "_keep_in_fp32_modules", None) or ())
    names = {name: module for name, module in model.named_modules() if name}
    for ending in skip or ():
        if not any(matches(name, [ending]) for name in names):
            raise ValueError(f"skip {ending!r} matches no module of {type(model).__name__}")
    found = {}
    if isinstance(model, AdapterLayer):
        raise ValueError(f"{type(model).__name__} has adapters; quantize its base model first")
    for name, module in names.items():
        if isinstance(module, AdapterLayer):
            raise ValueError(f"{name!r} has adapters; quantize the model before you inject them")
        # A subclass may compute something else, as in nn.MultiheadAttention.
        linear = type(module) is nn.Linear or is_quantized(module)
        if not linear or matches(name, left_out + fp32):
            continue
        try:
            require_quantizable(module, book, block_size, compute_dtype)
        except ValueError as error:
            raise ValueError(f"cannot quantize {name!r}: {error}") from None
        found[name] = module
    if not found:
        raise ValueError(f"{type(model).__name__} has no nn.Linear to quantize")
    for module in found.values():
        layer = Linear4bit(module, book, block_size, double=double, compute_dtype=compute_dtype)
        replace_module(model, module, layer.train(module.training))
    return list(found)


def _left_out(model: nn.Module) -> list[str]:
    """The names of a transformers model's output head and last module."""
    if not isinstance(model, PreTrainedModel):
        return []
    head = model.get_output_embeddings()
    last = [name for name, _ in model.named_parameters()][-1].rpartition(".")[0]
    return [last, *(name for name, module in model.named_modules() if module is head)]


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
    """
    if not isinstance(layer, AdapterLayer) or not isinstance(layer.base, Linear4bit):
        base = type(getattr(layer, "base", layer)).__name__
        raise TypeError(f"expected an adapter layer over a Linear4bit, got one over {base}")
    if layer.disabled:
        raise RuntimeError("the adapters are disabled; leave disable_adapters() before merging")
    return layer.base.with_weight(layer.merged_weight()) if layer.active else layer.base


def merge_quantized(model: nn.Module) -> None:
    """Merge the active adapters into every layer, also into 4-bit weights, and remove them.

    Layers that are not quantized are merged exactly. Raises what `requantized` and
    `merge_adapters` raise; the model is then unchanged.

    >>> from course_pkg.adapters.injection import inject
    >>> from course_pkg.adapters.lora import LoRAConfig
    >>> model = nn.Sequential(nn.Linear(64, 8))
    >>> names = quantize_model(model), inject(model, LoRAConfig(rank=2))
    >>> merge_quantized(model); type(model[0]).__name__
    'Linear4bit'
    """
    layers = adapter_layers(model)
    exact = {name: la for name, la in layers.items() if not isinstance(la.base, Linear4bit)}
    merged = {name: requantized(la) for name, la in layers.items() if name not in exact}
    merge_all(exact)
    for name, layer in layers.items():
        replace_module(model, layer, merged.get(name) or layer.without_adapters())


@torch.no_grad()
def merge_error(layer: AdapterLayer, x: Tensor) -> MergeError:
    """The error that merging causes in the layer's output for the input x, (..., in_features).

    Raises what `requantized` raises, and ValueError if no adapter changes the output.
    """
    merged = requantized(layer)
    before, base = (each(x).double() for each in (layer, layer.base))
    if not (change := (before - base).norm()):
        raise ValueError("the adapters do not change the output, so there is nothing to merge")
    error = (merged(x).double() - before).norm()
    return MergeError((error / before.norm()).item(), (error / change).item())
