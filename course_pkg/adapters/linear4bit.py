"""A frozen linear layer with a 4-bit weight, on which the adapters of any method work unchanged.

    y = dequantize(codes, scales) x + b

The weight is stored in 4 bits and dequantized to the compute dtype for each product, forward and
backward; it is not kept between the two. The gradient goes to x only. `quantization/blockwise`
computes the codes, and `qlora` puts the layer into a model.

Source: Dettmers et al. 2023 (QLoRA), section 3. Chapter: adapters/qlora.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.quantization.blockwise import (
    BLOCK_SIZE,
    DTYPES,
    DoubleQuantized,
    QuantizedTensor,
    quantize,
    require_block_size,
)
from course_pkg.quantization.code_books import code_book


class Linear4bit(nn.Linear):
    """A linear layer whose weight is stored as packed 4-bit codes and never trained.

    linear: the layer to quantize, which stays as it is; the bias is shared. book: "nf4", "fp4" or
    "int4". block_size: weights that share one scale; it must divide in_features, so that no block
    crosses two rows. double: whether the scales are quantized too. compute_dtype: of the product,
    by default the input's; the result has the input's dtype.
    `weight` holds the codes, uint8, (in_features · out_features / 2,); the scales are buffers,
    which keep their dtype when the model's is changed.
    Raises TypeError if linear is not an nn.Linear, and ValueError if it is quantized already, the
    block size does not fit, or a weight is not finite.
    Source: Dettmers et al. 2023, equations 5 and 6.

    >>> layer = Linear4bit(nn.Linear(128, 64, bias=False))
    >>> layer.weight.dtype, layer.weight.nbytes, layer(torch.ones(2, 128)).shape
    (torch.uint8, 4096, torch.Size([2, 64]))
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
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.bias = linear.bias
        self.book = book
        self.block_size = block_size
        self.double_quantized = double
        self.compute_dtype = compute_dtype
        self.stored_dtype = linear.weight.dtype
        quantized = quantize(linear.weight, book, block_size, double=double)
        self.weight = nn.Parameter(quantized.codes, requires_grad=False)
        if double:
            self.register_buffer("absmax", quantized.absmax.codes)
            self.register_buffer("nested_absmax", quantized.absmax.absmax)
            self.register_buffer("nested_offset", quantized.absmax.offset)
        else:
            self.register_buffer("absmax", quantized.absmax)
        settings = f"{book}, blocks of {block_size}, {self.stored_dtype}"
        self.register_buffer("settings", torch.tensor(list(settings.encode()), dtype=torch.uint8))

    @property
    def quantized(self) -> QuantizedTensor:
        """The weight with its scales; it shares their memory."""
        absmax = self.absmax
        if self.double_quantized:
            absmax = DoubleQuantized(self.absmax, self.nested_absmax, self.nested_offset)
        shape = torch.Size((self.out_features, self.in_features))
        book = code_book(self.book)
        codes = self.weight.detach()
        return QuantizedTensor(codes, absmax, shape, self.stored_dtype, self.block_size, book)

    def dequantized_weight(self) -> Tensor:
        """The weight as (out_features, in_features), in the dtype that it had."""
        return self.quantized.dequantize()

    def with_weight(self, weight: Tensor) -> "Linear4bit":
        """A new layer with this weight, (out_features, in_features), quantized as this one is."""
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(weight.to(self.stored_dtype), requires_grad=False)
        linear.bias = self.bias
        options = {"double": self.double_quantized, "compute_dtype": self.compute_dtype}
        return Linear4bit(linear, self.book, self.block_size, **options).train(self.training)

    def forward(self, x: Tensor) -> Tensor:  # x: (..., in_features)
        """W x + b in the compute dtype; the result, (..., out_features), has x's dtype.

        Raises TypeError for an x of integers.
        """
        if not x.is_floating_point():
            raise TypeError(f"Linear4bit needs x in floating point, got {x.dtype}; convert it")
        dtype = self.compute_dtype or x.dtype
        result = _Product.apply(x.to(dtype), self.quantized)
        if self.bias is not None:
            result = result + self.bias.to(dtype)
        return result.to(x.dtype)

    def extra_repr(self) -> str:
        """What print(model) shows of this layer."""
        bits = self.quantized.effective_bits
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, {self.book}, block_size={self.block_size}, {bits:.3f} bits per weight"

    def _apply(self, fn: Any, recurse: bool = True) -> "Linear4bit":
        """Move the scales with the model but keep their dtype; `model.to(bfloat16)` calls this."""
        before = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            if self._buffers[name].dtype != buffer.dtype:
                self._buffers[name] = buffer.to(self._buffers[name].device)
        return self

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        errors = args[-1]  # load_state_dict raises what this list contains
        stored = state_dict.get(f"{prefix}weight")
        settings = state_dict.get(f"{prefix}settings", self.settings)
        if stored is not None and stored.is_floating_point():
            errors.append(f"{prefix}weight is not quantized: load it before you quantize the model")
        elif not torch.equal(settings.cpu(), self.settings.cpu()):
            given, own = (bytes(each.tolist()).decode() for each in (settings, self.settings))
            errors.append(f"{prefix}weight is quantized as {given}, but the layer as {own}")
        else:
            super()._load_from_state_dict(state_dict, prefix, *args)


class _Product(torch.autograd.Function):
    """x Wᵀ with a quantized W, which is dequantized again for the gradient of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: QuantizedTensor) -> Tensor:
        ctx.weight = weight
        return F.linear(x, weight.dequantize(x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.weight.dequantize(gradient.dtype), None


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
