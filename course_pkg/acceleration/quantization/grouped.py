"""Integers with a scale and a zero point for each group of a row: rounding to the nearest.

A code, and the weight that it stands for::

    code = clamp(round(w / scale) + zero, 0, 2^bits − 1)        w ≈ scale · (code − zero)

An asymmetric grid covers the group's range, with 0 in it, so that 0 is represented exactly. A
symmetric grid has its zero point in the middle, 2^(bits−1), and its scale from the largest
magnitude m: 2m / (2^bits − 1). A weight at +m is rounded to half a step less. GPTQ, AWQ and plain
rounding choose other codes on the same grids.

Sources: Jacob et al. 2018, section 2.1; Frantar et al. 2023 (GPTQ), section 3.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from course_pkg.acceleration.quantization import cpu_kernels
from course_pkg.acceleration.quantization.quantized_linear import QuantizedWeight, dense_product
from course_pkg.common.arguments import require_integer


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes along their last dimension into bytes: eight codes of b bits take b bytes.

    The first code has the lowest bits of the first byte; a code may cross into the next byte.

    Args:
        codes: integers in [0, 2^bits), (..., n); a last group of fewer than eight is filled with 0.

    Example:

        >>> pack(torch.tensor([1, 2, 3, 0, 0, 0, 0, 0]), 3).tolist()  # 1 + 2·8 + 3·64 = 209
        [209, 0, 0]
    """
    require_bits(bits)
    if codes.is_floating_point() or codes.numel() == 0:
        raise ValueError(
            f"codes must be integers, at least one; got {tuple(codes.shape)} of {codes.dtype}"
        )
    if int(codes.min()) < 0 or int(codes.max()) >= 2**bits:
        raise ValueError(
            f"codes of {bits} bits are in 0 … {2**bits - 1}, got {int(codes.min())} … "
            f"{int(codes.max())}"
        )
    codes = torch.nn.functional.pad(codes.long(), (0, -codes.shape[-1] % 8))
    eights = codes.unflatten(-1, (-1, 8))  # (..., groups of eight, 8)
    shifts = bits * torch.arange(8, device=codes.device)
    words = (eights << shifts).sum(-1, keepdim=True)  # 8 · bits ≤ 64: no two codes overlap
    octets = words >> 8 * torch.arange(bits, device=codes.device) & 255
    return octets.flatten(-2).to(torch.uint8)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The first `count` codes of what `pack` made, uint8, (..., count)."""
    require_bits(bits)
    if packed.shape[-1] != packed_size(count, bits):
        raise ValueError(
            f"{count} codes of {bits} bits take {packed_size(count, bits)} bytes, got "
            f"{packed.shape[-1]}"
        )
    if bits == 8:
        return packed[..., :count]
    octets = packed.unflatten(-1, (-1, bits)).long()  # (..., groups of eight, bits)
    words = (octets << 8 * torch.arange(bits, device=packed.device)).sum(-1, keepdim=True)
    codes = words >> bits * torch.arange(8, device=packed.device) & (2**bits - 1)
    return codes.flatten(-2)[..., :count].to(torch.uint8)


def packed_size(count: int, bits: int) -> int:
    """The bytes of one row of codes."""
    return -(-count // 8) * bits


def require_bits(bits: int, least: int = 1) -> int:
    """Return the bits if they are an integer from `least` to 8; otherwise raise ValueError."""
    if require_integer(bits, "bits", least) > 8:
        raise ValueError(f"bits must be from {least} to 8, got {bits}")
    return bits


SCALE_DTYPE = torch.float16


@dataclass(frozen=True)
class Grid:
    """What a group may be rounded to.

    Attributes:
        bits: 2 to 8.
        group_size: weights of a row that share a scale; None for the whole row.
        symmetric: whether the zero point is fixed in the middle.
    """

    bits: int = 4
    group_size: int | None = 64
    symmetric: bool = False

    def __post_init__(self) -> None:
        require_bits(self.bits, least=2)
        if self.group_size is not None:
            require_integer(self.group_size, "group_size")

    @property
    def largest(self) -> int:
        """The largest code, 2^bits − 1."""
        return 2**self.bits - 1

    def describe(self) -> str:
        """The grid in words."""
        groups = f"groups of {self.group_size}" if self.group_size else "whole rows"
        return f"{self.bits} bits, {groups}{', symmetric' if self.symmetric else ''}"

    def width(self, columns: int) -> int:
        """How many columns a group has; ValueError if groups do not divide the columns."""
        width = self.group_size or columns
        if columns % width:
            fitting = [size for size in (16, 32, 64, 96, 128, 192, 256) if columns % size == 0]
            hint = f"; these divide it: {', '.join(map(str, fitting))}" if fitting else ""
            raise ValueError(f"groups of {width} do not divide {columns} columns{hint}")
        return width

    def fit(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The scale and the zero point of each row of one group, (rows, columns): (rows, 1) each.

        The scale is rounded to fp16; a row of zeros has scale 1.
        """
        low = weight.amin(1, keepdim=True).clamp(max=0)
        high = weight.amax(1, keepdim=True).clamp(min=0)
        if self.symmetric:
            high = torch.maximum(high, -low)
            low = -high
        scale = (high - low) / self.largest
        if scale.numel() and (largest := float(scale.max())) > torch.finfo(SCALE_DTYPE).max:
            raise ValueError(
                f"a group needs the scale {largest:g}, which is too large for {SCALE_DTYPE}; are "
                "these weights?"
            )
        scale = scale.to(SCALE_DTYPE).to(weight.dtype)
        scale = torch.where(scale == 0, 1.0, scale)
        if self.symmetric:
            return scale, torch.full_like(scale, 2 ** (self.bits - 1))
        return scale, (-low / scale).round().clamp(0, self.largest)

    def codes(self, weight: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        """The codes of the nearest grid points, as floats; ties to even, as torch rounds."""
        return ((weight / scale).round() + zero).clamp(0, self.largest)


@dataclass(frozen=True, eq=False)
class GroupedWeight(QuantizedWeight):
    """A weight matrix in codes: everything that is stored."""

    codes: Tensor  # packed, uint8, (rows, bytes)
    scale: Tensor  # fp16, (rows, groups)
    zero: Tensor  # uint8, (rows, groups)
    order: Tensor | None  # the group of each column, unless they are neighbors
    columns: int
    dtype: torch.dtype
    grid: Grid

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.codes), self.columns))

    def describe(self) -> str:
        return self.grid.describe()

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """scale · (code − zero), computed in fp32 and rounded to dtype."""
        numbers = unpack(self.codes, self.grid.bits, self.columns).float()
        scale = self.scale.float()
        zero = self.zero.float()
        if self.order is None:
            numbers = numbers.unflatten(1, (scale.shape[1], -1))  # (rows, groups, width)
            scale = scale[..., None]
            zero = zero[..., None]
        else:
            scale = scale[:, self.order]
            zero = zero[:, self.order]
        return numbers.sub_(zero).mul_(scale).view(self.shape).to(dtype or self.dtype)

    def matmul(self, x: Tensor) -> Tensor:
        """x Ŵᵀ, (..., rows), with packed codes where a kernel takes weight and x.

        On a CPU, torch's takes a few tokens in bf16 (`cpu_kernels`); on a GPU, `w4a16_triton` takes
        x in 16 bits without a gradient. Otherwise the weight is dequantized first.
        """
        if self.grid.bits == 4 and self.order is None:
            if cpu_kernels.takes(x, 4) and self._fits:
                return self._few_tokens_weight.product(x)
            if x.is_cuda:
                from course_pkg.acceleration.quantization import (
                    w4a16_triton,  # only here: it imports triton
                )

                if w4a16_triton.runs_kernel(x, self._group_width):
                    return w4a16_triton.w4a16_matmul(x, self.codes, self.scale, self.zero)
        return dense_product(x, self)

    @property
    def _group_width(self) -> int:
        return self.columns // self.scale.shape[1]

    @cached_property
    def _fits(self) -> bool:
        return cpu_kernels.fits(self.shape, self._group_width)

    @cached_property
    def _few_tokens_weight(self) -> cpu_kernels.Int4Weight:
        codes = unpack(self.codes, self.grid.bits, self.columns)
        return cpu_kernels.Int4Weight(codes, self.scale, -self.scale.float() * self.zero)


def store(
    codes: Tensor,
    scale: Tensor,
    zero: Tensor,
    grid: Grid,
    dtype: torch.dtype,
    order: Tensor | None = None,
) -> GroupedWeight:
    """Codes, (rows, columns), scales and zero points, (rows, groups), packed."""
    packed = pack(codes.to(torch.uint8), grid.bits)
    scale = scale.to(SCALE_DTYPE).contiguous()
    order = None if order is None else order.to(torch.int32)
    zero = zero.to(torch.uint8).contiguous()
    return GroupedWeight(packed, scale, zero, order, codes.shape[1], dtype, grid)


def round_to_nearest(weight: Tensor, grid: Grid) -> GroupedWeight:
    """Round each weight, (rows, columns), to the nearest point of its group's grid.

    Example:

        >>> rounded = round_to_nearest(torch.tensor([[-1.0, 0.0, 0.6, 2.0]]), Grid(2, 4))
        >>> rounded.dequantize()
        tensor([[-1.,  0.,  1.,  2.]])
    """
    width = grid.width(require_matrix(weight).shape[1])
    numbers = weight.detach().float()
    groups = numbers.reshape(-1, width)
    scale, zero = grid.fit(groups)
    codes = grid.codes(groups, scale, zero).view(numbers.shape)
    shape = (len(numbers), -1)
    return store(codes, scale.view(shape), zero.view(shape), grid, weight.dtype)


def require_matrix(weight: Tensor) -> Tensor:
    """Return the weight if it is a matrix of finite floats; otherwise raise ValueError."""
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        shape = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(f"expected a matrix of floats, (rows, columns), got {shape}")
    if not torch.isfinite(weight).all():
        raise ValueError("the weight has NaN or infinite entries; they can't be quantized")
    return weight
