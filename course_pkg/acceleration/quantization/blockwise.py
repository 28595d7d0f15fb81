"""Blockwise 4-bit quantization: each block of numbers shares one scale, its largest magnitude.

A number is divided by its block's absmax and replaced by the code of the nearest level. Double
quantization stores the fp32 scales in 8 bits each: their mean is subtracted, and the dynamic code
stores the differences in blocks of 256. Codes and scales equal those of bitsandbytes 0.50.2 on a
CPU, bit for bit (`tests/parity/test_bitsandbytes.py` has the exceptions).

Sources: Dettmers et al. 2023 (QLoRA), sections 2 and 3 and appendix E; Dettmers et al. 2022,
"8-bit Optimizers via Block-wise Quantization", section 2.
"""

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
from torch import Tensor

from course_pkg.acceleration.quantization.levels import LEVELS, SMALLEST
from course_pkg.acceleration.quantization.quantized_linear import QuantizedWeight
from course_pkg.common.arguments import require_choice, require_integer


@dataclass(frozen=True, eq=False)
class CodeBook:
    """The levels of a 4-bit code: code number i stands for levels[i]."""

    name: str
    levels: Tensor  # at most 16 in [-1, 1], fp32

    @cached_property
    def ascending_codes(self) -> Tensor:
        """The codes from the smallest level to the largest."""
        return self.levels.argsort(stable=True)

    @cached_property
    def bounds(self) -> Tensor:
        """The midpoints of neighboring levels; a number on a midpoint takes the lower level."""
        ascending = self.levels[self.ascending_codes]
        return (ascending[:-1] + ascending[1:]) / 2


@cache
def dynamic_levels(device: torch.device | str = "cpu") -> Tensor:
    """The 8-bit dynamic code: 256 ascending levels, dense near 0.

    For each power 10^0 to 10^-6, a number of linear steps between 0.1 and 1 that halves from 64 to
    1, on both sides of zero; and 0 and 1. Its smallest level is -0.993.
    """
    levels = [torch.tensor([0.0, 1.0])]
    for power in range(7):
        edges = torch.linspace(0.1, 1, 2**power + 1)
        steps = 10 ** (power - 6) * ((edges[:-1] + edges[1:]) / 2)
        levels += [steps, -steps]
    return torch.cat(levels).sort().values.to(device)


@cache
def code_book(name: str) -> CodeBook:
    """The code book with this name: "nf4", "fp4" or "int4"."""
    levels = LEVELS[require_choice(name, "code_book", LEVELS)]()
    return CodeBook(name, torch.tensor(levels))


@cache
def byte_levels(name: str, device: torch.device) -> Tensor:
    """For each byte, the levels of its high and of its low code, (256, 2), fp32."""
    levels = torch.zeros(16)
    levels[: len(code_book(name).levels)] = code_book(name).levels
    return torch.cartesian_prod(levels, levels).to(device)


BLOCK_SIZE = 64  # QLoRA's, for weights and for their scales
CONSTANT_BLOCK_SIZE = 256
ROWS = 2**16  # numbers that are compared with the bounds at a time, so that they stay in cache
GRID = 2**16  # a scale in [-1, 1] is rounded to this many points before its level is looked up
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, eq=False)
class DoubleQuantized:
    """Scales in 8 bits: codes, uint8; one absmax per block of 256, fp32; the mean, fp32."""

    codes: Tensor
    absmax: Tensor
    offset: Tensor

    def dequantize(self) -> Tensor:
        """The scales in fp32: level · absmax + offset."""
        levels = dynamic_levels(self.codes.device).index_select(0, self.codes.int())
        scales = self.absmax.repeat_interleave(CONSTANT_BLOCK_SIZE)[: len(levels)]
        return levels * scales + self.offset


@dataclass(frozen=True, eq=False)
class QuantizedTensor(QuantizedWeight):
    """A tensor in 4 bits: everything that is stored, and how to get the numbers back."""

    codes: Tensor  # uint8, (ceil(n / 2),): the first of two in the high four bits
    absmax: Tensor | DoubleQuantized  # fp32, one per block
    shape: torch.Size  # as dtype, of the original
    dtype: torch.dtype
    block_size: int
    code_book: CodeBook

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """level · absmax, computed in fp32 and rounded to dtype, by default the original's.

        One lookup per byte fetches two levels at once.
        """
        pairs = byte_levels(self.code_book.name, self.codes.device).view(torch.float64).view(-1)
        levels = pairs.index_select(0, self.codes.int()).view(torch.float32)
        count = math.prod(self.shape)
        whole = count // self.block_size * self.block_size  # numbers in whole blocks
        scales = self.scales()[:, None]
        levels[:whole].view(-1, self.block_size).mul_(scales[: whole // self.block_size])
        if whole < count:
            levels[whole:].mul_(scales[-1])
        return levels[:count].view(self.shape).to(dtype or self.dtype)

    def scales(self) -> Tensor:
        """The absmax of every block in fp32, (ceil(n / block_size),)."""
        doubly = isinstance(self.absmax, DoubleQuantized)
        return self.absmax.dequantize() if doubly else self.absmax

    def describe(self) -> str:
        doubly = ", scales in 8 bits" if isinstance(self.absmax, DoubleQuantized) else ""
        return f"{self.code_book.name}, blocks of {self.block_size}{doubly}, {self.dtype}"

    def tensors(self) -> dict[str, Tensor]:
        if not isinstance(self.absmax, DoubleQuantized):
            return {"codes": self.codes, "absmax": self.absmax}
        return {
            "codes": self.codes,
            "absmax": self.absmax.codes,
            "nested_absmax": self.absmax.absmax,
            "nested_offset": self.absmax.offset,
        }

    def with_tensors(self, tensors: dict[str, Tensor]) -> "QuantizedTensor":
        absmax = tensors["absmax"]
        if isinstance(self.absmax, DoubleQuantized):
            absmax = DoubleQuantized(absmax, tensors["nested_absmax"], tensors["nested_offset"])
        return replace(self, codes=tensors["codes"], absmax=absmax)


def quantize(
    tensor: Tensor, book: str = "nf4", block_size: int = BLOCK_SIZE, *, double: bool = True
) -> QuantizedTensor:
    """Quantize a tensor to 4 bits in blocks of its numbers in memory order.

    A block with a NaN or an infinite number becomes NaN when it is dequantized; with `double`, all
    do.

    Args:
        tensor: fp32, bf16 or fp16, any shape; the last block may be shorter.
        book: "nf4", "fp4" or "int4".
        block_size: an even number.
        double: whether the scales are quantized to 8 bits.
    """
    levels = code_book(book)
    require_block_size(block_size)
    if not isinstance(tensor, Tensor) or tensor.dtype not in DTYPES:
        kind = getattr(tensor, "dtype", type(tensor).__name__)
        raise TypeError(f"can quantize float32, bfloat16 and float16 tensors, got {kind}")
    if not tensor.numel():
        raise ValueError(f"cannot quantize an empty tensor, of shape {tuple(tensor.shape)}")
    numbers = tensor.detach().reshape(-1).float()
    whole = len(numbers) // block_size * block_size
    blocks = numbers[:whole].view(-1, block_size)
    absmax = blocks.abs().amax(1)
    scaled = (blocks * absmax.clamp(min=SMALLEST).reciprocal()[:, None]).view(-1)
    if whole < len(numbers):  # bitsandbytes divides here, which can round differently
        rest = numbers[whole:]
        last = rest.abs().amax().clamp(min=SMALLEST)
        absmax = torch.cat([absmax, last[None]])
        scaled = torch.cat([scaled, rest / last])
    if len(scaled) % 2:
        scaled = torch.nn.functional.pad(scaled, (0, 1))
    ranks = _ranks(scaled, levels.bounds.tolist())
    codes = _remapped(ranks[::2] << 4 | ranks[1::2], levels)
    scales = quantize_scales(absmax) if double else absmax
    return QuantizedTensor(codes, scales, tensor.shape, tensor.dtype, block_size, levels)


def quantize_scales(scales: Tensor) -> DoubleQuantized:
    """Quantize the fp32 scales of a tensor's blocks, (blocks,), to 8 bits.

    Like bitsandbytes on a CPU, it rounds to a grid of 2^16 points first and looks up the nearest
    level of the grid point. If a scale is NaN or infinite, all of them become NaN.
    """
    offset = scales.mean()
    centered = scales - offset
    count = len(scales)
    padding = -count % CONSTANT_BLOCK_SIZE
    blocks = torch.nn.functional.pad(centered, (0, padding)).view(-1, CONSTANT_BLOCK_SIZE)
    absmax = blocks.abs().nan_to_num(0.0, torch.inf).amax(1)
    normalized = (blocks * absmax.reciprocal()[:, None]).clamp(-1, 1).nan_to_num(-1.0)
    points = ((normalized + 1) * 0.5 * (GRID - 1) + 0.5).int()  # rounded to the nearest point
    codes = _code_of_point().to(scales.device).index_select(0, points.view(-1)).view(blocks.shape)
    codes = torch.where(absmax[:, None] == 0, 0, codes).view(-1)[:count]
    return DoubleQuantized(codes, absmax, offset)


def effective_bits(block_size: int, constant_block_size: int | None) -> float:
    """Bits per parameter that 4-bit storage costs, scales included.

    4 + 8/block_size + 32/(block_size · constant_block_size); without double quantization (None),
    4 + 32/block_size.

    Source: QLoRA (Dettmers et al. 2023), section 3.

    Example:

        >>> round(effective_bits(64, 256), 3), effective_bits(64, None)
        (4.127, 4.5)
    """
    if block_size < 1 or (constant_block_size is not None and constant_block_size < 1):
        raise ValueError(f"block sizes must be >= 1, got {block_size} and {constant_block_size}")
    if constant_block_size is None:
        return 4 + 32 / block_size
    return 4 + 8 / block_size + 32 / (block_size * constant_block_size)


def stored_bytes(size: int, block_size: int, constant_block_size: int | None) -> int:
    """Bytes of a tensor of `size` numbers in 4 bits; partial blocks count as whole ones."""
    scales = math.ceil(size / block_size)
    if constant_block_size is None:
        return math.ceil(size / 2) + 4 * scales
    return math.ceil(size / 2) + scales + 4 * math.ceil(scales / constant_block_size) + 4


def require_block_size(block_size: int) -> int:
    """Return the block size if it is an even integer of at least 2."""
    if require_integer(block_size, "block_size", least=2) % 2:
        raise ValueError(
            f"block_size must be even, because a byte holds two codes of a block; got {block_size}"
        )
    return block_size


def _ranks(scaled: Tensor, bounds: list[float]) -> Tensor:
    """How many bounds are below each number, uint8; NaN counts as above all."""
    ranks = torch.full(scaled.shape, len(bounds), dtype=torch.uint8, device=scaled.device)
    for start in range(0, len(scaled), ROWS):
        part = scaled[start : start + ROWS]
        counts = ranks[start : start + ROWS]
        for bound in bounds:
            counts -= (part <= bound).view(torch.uint8)
    return ranks


def _remapped(packed: Tensor, book: CodeBook) -> Tensor:
    """Bytes of two ranks as bytes of two codes; where levels ascend, the two are the same."""
    codes = book.ascending_codes.to(torch.uint8)  # of each rank
    if torch.equal(book.ascending_codes, torch.arange(len(codes))):
        return packed
    table = (codes[:, None] << 4 | codes).view(-1).to(packed.device)
    return table.index_select(0, packed.int())


@cache
def _code_of_point() -> Tensor:
    """The code of the level nearest to each grid point, uint8, (GRID,)."""
    levels = dynamic_levels()
    points = 2.0 * torch.arange(GRID) / (GRID - 1) - 1
    return torch.bucketize(points, (levels[:-1] + levels[1:]) / 2).to(torch.uint8)
