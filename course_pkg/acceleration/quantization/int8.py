"""Integers of 8 bits for weights and activations: scales, codes, and products of codes.

Two kinds of codes, and the numbers that they stand for::

    symmetric: code = clamp(round(x / s), −127, 127),           x ≈ s · code,       s = max|x| / 127
    affine:    code = clamp(round(x / s) + z, −128, 127),       x ≈ s · (code − z)

The affine scale covers the range from the smallest to the largest number, with 0 in it; the zero
point z is the code of 0. Weights are symmetric, so that y needs one correction at most::

    y = s_x s_w Σ (a − z)(b − 0) = s_x s_w (Σ a b − z Σ b)

Sources: Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", section 2; Nagel et al. 2021, "A White Paper on Neural Network
Quantization", sections 2 and 3.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from course_pkg.acceleration.quantization import cpu_kernels
from course_pkg.acceleration.quantization.grouped import require_bits, require_matrix
from course_pkg.acceleration.quantization.int8_matmul import Int8Kernel, float_rows_matmul
from course_pkg.acceleration.quantization.quantized_linear import QuantizedWeight
from course_pkg.common.arguments import require_bool, require_choice

PER = ("row", "tensor")
SMALLEST = torch.finfo(torch.float32).tiny  # a scale below it has no finite reciprocal


def symmetric_scale(x: Tensor, per: str = "row", bits: int = 8) -> Tensor:
    """The scale with which the largest magnitude gets the largest code, 2^(bits−1) − 1.

    Args:
        x: (..., columns).
        per: "row", for (..., 1), or "tensor", for one number, (1,).
    """
    rows = x if require_choice(per, "per", PER) == "row" else x.flatten()
    largest = rows.abs().amax(-1, keepdim=True)
    return _scale(largest, 2 ** (require_bits(bits, least=2) - 1) - 1)


def affine_scale(x: Tensor, per: str = "row", bits: int = 8) -> tuple[Tensor, Tensor]:
    """The scale and the zero point with which the range of x, and 0, gets all 2^bits codes.

    Zero points are integers in x's dtype. Arguments as in `symmetric_scale`.
    """
    return _affine(*_range(x, per), require_bits(bits, least=2))


def calibrate(
    inputs: Iterable[Tensor], affine: bool = False, bits: int = 8
) -> tuple[Tensor, Tensor]:
    """One scale and one zero point, (1,), for all activations of some calibration inputs."""
    require_bool(affine, "affine")
    ranges = [torch.stack(_range(_require_finite(x), "tensor")) for x in inputs]
    if not ranges:
        raise ValueError("there are no calibration inputs; give at least one tensor")
    lowest = torch.stack(ranges)[:, 0].amin(0)
    highest = torch.stack(ranges)[:, 1].amax(0)
    if affine:
        return _affine(lowest, highest, require_bits(bits, least=2))
    scale = symmetric_scale(torch.cat([lowest, highest]), "tensor", bits)
    return scale, torch.zeros_like(scale)


def quantize(x: Tensor, scale: Tensor, zero: Tensor | None = None, bits: int = 8) -> Tensor:
    """The int8 codes clamp(round(x / scale) + zero): ties to even, as torch rounds.

    Without a zero point, codes are symmetric, −127 … 127.
    """
    return _codes(x, scale, zero, bits).to(torch.int8)


def dequantize(codes: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """scale · (codes − zero), in the scale's dtype."""
    numbers = codes.to(scale.dtype)
    return (numbers if zero is None else numbers - zero) * scale


@dataclass(frozen=True, eq=False)
class _Int8Weight(QuantizedWeight):
    codes: Tensor  # int8, (out_features, in_features)
    scale: Tensor  # fp32, (out_features, 1)
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        return dequantize(self.codes, self.scale).to(dtype or self.dtype)


class W8A16(_Int8Weight):
    """A weight in int8, one scale per row, made by `int8_weight`; activations stay as they are."""

    def describe(self) -> str:
        return "int8 weight"

    def matmul(self, x: Tensor) -> Tensor:
        """x Ŵᵀ: the product with the codes, then the scales.

        A few tokens in bf16 go through torch's kernel for them, with scales rounded to bf16. The
        others are computed in fp32 on a CPU, on a GPU in x's dtype. In fp16, sums of codes may be
        too large, so the scales come first.
        """
        if self._fits and cpu_kernels.takes(x, 8):
            return cpu_kernels.int8_product(x, self.codes, self._bf16_scale)
        numbers = x.float() if x.device.type == "cpu" else x
        if numbers.dtype == torch.float16:
            return float_rows_matmul(numbers, self.codes, self.scale)
        product = float_rows_matmul(numbers, self.codes)
        return (product * self.scale.flatten()).to(x.dtype)

    @cached_property
    def _fits(self) -> bool:
        return cpu_kernels.fits(self.shape)

    @cached_property
    def _bf16_scale(self) -> Tensor:
        return self.scale.flatten().to(torch.bfloat16)


@dataclass(frozen=True)
class Activations:
    """How activations are quantized.

    Attributes:
        per: "row", each token by itself, or "tensor".
        affine: whether there is a zero point.
        bits: 8, or 7, with which a CPU without AVX-512 has a fast product.
    """

    per: str = "row"
    affine: bool = False
    bits: int = 8

    def __post_init__(self) -> None:
        require_choice(self.per, "per", PER)
        require_bool(self.affine, "affine")
        if self.bits not in (7, 8):
            raise ValueError(f"activations can have 7 or 8 bits, got {self.bits}")


@dataclass(frozen=True, eq=False)
class W8A8(_Int8Weight):
    """A weight in int8, one scale per row, whose product is computed with int8 activations."""

    row_sums: Tensor  # int32, (out_features,): what a zero point of the activations multiplies
    activations: Activations
    kernel: Int8Kernel = field(default_factory=Int8Kernel)

    def describe(self) -> str:
        granularity = "per token" if self.activations.per == "row" else "per tensor"
        affine = ", affine" if self.activations.affine else ""
        return f"int8 weight, int{self.activations.bits} activations {granularity}{affine}"

    def matmul(self, x: Tensor) -> Tensor:
        """x̂ Ŵᵀ, where x̂ is the quantized x: the exact sum of integers, rescaled in fp32."""
        if not x.numel():  # there is no largest number
            return x.new_zeros(*x.shape[:-1], len(self.codes))
        numbers = x.float()
        bits = self.activations.bits
        if self.activations.affine:
            scale, zero = affine_scale(numbers, self.activations.per, bits)
        else:
            scale, zero = symmetric_scale(numbers, self.activations.per, bits), None
        product = self.kernel(_codes(numbers, scale, zero, bits), self.codes, bits)
        if zero is not None:
            product -= zero * self.row_sums
        return product.mul_(scale).mul_(self.scale.flatten()).to(x.dtype)


def int8_weight(weight: Tensor, activations: Activations | None = None) -> W8A16 | W8A8:
    """Quantize a weight, (out_features, in_features), to int8 with one scale per row.

    Without `activations`, these are not quantized.

    Example:

        >>> weight = int8_weight(torch.tensor([[127.0, -1.0]]), Activations())
        >>> weight.matmul(torch.tensor([[254.0, 127.0]]))  # codes 127 and 63.5, which becomes 64
        tensor([[32130.]])
    """
    numbers = require_matrix(weight).detach().float()
    scale = symmetric_scale(numbers)
    codes = quantize(numbers, scale)
    if activations is None:
        return W8A16(codes, scale, weight.dtype)
    row_sums = codes.sum(1, dtype=torch.int32)
    return W8A8(codes, scale, weight.dtype, row_sums, activations)


def _codes(x: Tensor, scale: Tensor, zero: Tensor | None, bits: int) -> Tensor:
    """The codes as floats."""
    largest = 2 ** (bits - 1) - 1
    codes = (x * scale.reciprocal()).round_()
    if zero is None:
        return codes.clamp_(-largest, largest)
    return (codes + zero).clamp_(-largest - 1, largest)


def _range(x: Tensor, per: str) -> tuple[Tensor, Tensor]:
    """The smallest and the largest number, (1,), or of each row, (..., 1)."""
    rows = x if require_choice(per, "per", PER) == "row" else x.flatten()
    return rows.amin(-1, keepdim=True), rows.amax(-1, keepdim=True)


def _affine(low: Tensor, high: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    low = low.clamp(max=0)
    scale = _scale(high.clamp(min=0) - low, 2**bits - 1)
    smallest = -(2 ** (bits - 1))
    return scale, (smallest - (low / scale).round()).clamp(smallest, -smallest - 1)


def _scale(extent: Tensor, steps: int) -> Tensor:
    return (extent / steps).clamp_(min=SMALLEST)


def _require_finite(x: Tensor) -> Tensor:
    if not isinstance(x, Tensor) or not x.numel() or not torch.isfinite(x).all():
        what = f"{tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"a calibration input must be a tensor of finite numbers, got {what}")
    return x.detach().float()
