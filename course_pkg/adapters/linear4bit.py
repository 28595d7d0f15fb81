"""A frozen linear layer with a 4-bit weight, on which the adapters of any method work unchanged.

    y = dequantize(codes, scales) x + b

The weight is stored in 4 bits and dequantized to the compute dtype for each product, forward and
backward; it is not kept between the two. The gradient goes to x only. `quantization/blockwise`
computes the codes, and `qlora` puts the layer into a model.

Source: Dettmers et al. 2023 (QLoRA), section 3. Chapter: adapters/qlora.
"""

import torch
from torch import Tensor, nn

from course_pkg.acceleration.quantization.blockwise import (
    BLOCK_SIZE,
    DTYPES,
    DoubleQuantized,
    quantize,
    require_block_size,
)
from course_pkg.acceleration.quantization.code_books import code_book
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear


class Linear4bit(QuantizedLinear):
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
        """W x + b in the compute dtype; the result, (..., out_features), has x's dtype.

        Raises TypeError for an x of integers.
        """
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
