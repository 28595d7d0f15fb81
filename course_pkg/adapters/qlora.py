"""QLoRA: frozen linear layers with 4-bit weights, under the adapters of any method::

    y = dequantize(codes, scales) x + b

The weight is dequantized for each product, forward and backward; the gradient goes to x only.
`merge_adapters` refuses quantized weights: rounding the sum to 4 bits can cost more than the
adapter learned. `merge_quantized` does it on request. Source: Dettmers et al. 2023 (QLoRA),
section 3.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from course_pkg.acceleration.quantization.blockwise import (
    BLOCK_SIZE,
    DTYPES,
    DoubleQuantized,
    code_book,
    quantize,
    require_block_size,
)
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.adapters.argument_checks import require_model
from course_pkg.adapters.injection import adapter_layers, merge_all
from course_pkg.adapters.layer import AdapterLayer
from course_pkg.adapters.targets import matches, replace_module


class Linear4bit(QuantizedLinear):
    """A linear layer whose weight is stored as packed 4-bit codes and never trained.

    `weight` holds the codes, uint8, (in_features · out_features / 2,); the scales are buffers,
    which keep their dtype when the model's is changed.

    Args:
        linear: the layer to quantize, which stays as it is; the bias is shared.
        book: "nf4", "fp4" or "int4".
        block_size: weights that share one scale; it must divide in_features, so that no block
            crosses two rows.
        double: whether the scales are quantized too.
        compute_dtype: of the product, by default the input's; the result has the input's dtype.

    Source: Dettmers et al. 2023, equations 5 and 6.
    """

    def __init__(
        self,
        linear: nn.Linear,
        book: str = "nf4",
        block_size: int = BLOCK_SIZE,
        *,
        double: bool = True,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        require_quantizable(linear, book, block_size, compute_dtype)
        super().__init__(quantize(linear.weight, book, block_size, double=double), linear.bias)
        self.compute_dtype = compute_dtype

    def with_weight(self, weight: Tensor) -> "Linear4bit":
        """A new layer with this weight, (out_features, in_features), quantized as this one is."""
        own = self.quantized
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(weight.to(own.dtype), requires_grad=False)
        linear.bias = self.bias
        layer = Linear4bit(
            linear,
            own.code_book.name,
            own.block_size,
            double=isinstance(own.absmax, DoubleQuantized),
            compute_dtype=self.compute_dtype,
        )
        return layer.train(self.training)

    def forward(self, x: Tensor) -> Tensor:  # x: (..., in_features)
        """W x + b in the compute dtype; the result, (..., out_features), has x's dtype."""
        if self.compute_dtype is None or not x.is_floating_point():
            return super().forward(x)
        return super().forward(x.to(self.compute_dtype)).to(x.dtype)


def require_quantizable(
    linear: nn.Linear, book: str, block_size: int, compute_dtype: torch.dtype | None = None
) -> None:
    """Raise an error, as `Linear4bit` documents, unless the layer can be quantized like this."""
    code_book(book)
    require_block_size(block_size)
    if compute_dtype not in (None, *DTYPES):
        raise TypeError(f"compute_dtype must be None or one of {DTYPES}, got {compute_dtype!r}")
    if not isinstance(linear, nn.Linear):
        raise TypeError(f"Linear4bit quantizes an nn.Linear, got {type(linear).__name__}")
    if is_quantized(linear):
        raise ValueError(f"the layer is quantized already ({type(linear).__name__})")
    if linear.weight.dtype not in DTYPES:
        raise ValueError(f"the weight must be 32- or 16-bit, got {linear.weight.dtype}")
    if linear.in_features % block_size:
        fitting = [size for size in (16, 32, 64, 128, 256) if not linear.in_features % size]
        hint = f"; these divide it: {', '.join(map(str, fitting))}" if fitting else "; skip it"
        raise ValueError(
            f"block_size {block_size} does not divide in_features {linear.in_features}{hint}"
        )
    if linear.weight.is_meta:
        raise ValueError("the weight is on the meta device, which has no numbers; load it first")
    if not torch.isfinite(linear.weight).all():
        raise ValueError("the weight has NaN or infinite entries")


def is_quantized(module: nn.Module) -> bool:
    """Whether the module is an nn.Linear whose weight holds integer codes."""
    return isinstance(module, nn.Linear) and not module.weight.is_floating_point()


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

    Modules that transformers keeps in fp32 are left out in any case. Inject adapters afterwards.

    Args:
        skip: name endings of layers to leave as they are; by default the output head of a
            transformers model and its last module, such as a classifier.
    """
    if isinstance(skip, str):
        raise TypeError(f"skip must be a list of strings, got {skip!r}; write [{skip!r}]")
    left_out = _left_out(require_model(model)) if skip is None else list(skip)
    fp32 = list(getattr(model, "_keep_in_fp32_modules", None) or ())
    names = {name: module for name, module in model.named_modules() if name}
    for ending in skip or ():
        if not any(matches(name, [ending]) for name in names):
            raise ValueError(f"skip {ending!r} matches no module of {type(model).__name__}")
    layers = {}
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
        layers[name] = module
    if not layers:
        raise ValueError(f"{type(model).__name__} has no nn.Linear to quantize")
    for module in layers.values():
        layer = Linear4bit(module, book, block_size, double=double, compute_dtype=compute_dtype)
        replace_module(model, module, layer.train(module.training))
    return list(layers)


def _left_out(model: nn.Module) -> list[str]:
    if not isinstance(model, PreTrainedModel):
        return []
    head = model.get_output_embeddings()
    last = [name for name, _ in model.named_parameters()][-1].rpartition(".")[0]
    return [last, *(name for name, module in model.named_modules() if module is head)]


def requantized(layer: AdapterLayer) -> Linear4bit:
    """A 4-bit layer with the active adapters in its weight: dequantize, add, quantize again."""
    if not isinstance(layer, AdapterLayer) or not isinstance(layer.base, Linear4bit):
        base = type(getattr(layer, "base", layer)).__name__
        raise TypeError(f"expected an adapter layer over a Linear4bit, got one over {base}")
    if layer.disabled:
        raise RuntimeError("the adapters are disabled; leave disable_adapters() before merging")
    return layer.base.with_weight(layer.merged_weight()) if layer.active else layer.base


def merge_quantized(model: nn.Module) -> None:
    """Merge the active adapters into every layer, also into 4-bit weights, and remove them.

    Layers that are not quantized are merged exactly. After an error, the model is unchanged.
    """
    layers = adapter_layers(model)
    exact = {name: la for name, la in layers.items() if not isinstance(la.base, Linear4bit)}
    merged = {name: requantized(la) for name, la in layers.items() if name not in exact}
    merge_all(exact)
    for name, layer in layers.items():
        replace_module(model, layer, merged.get(name) or layer.without_adapters())
