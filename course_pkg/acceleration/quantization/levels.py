"""Quantization in 4 bits number by number, without torch: code levels, and an affine grid.

`blockwise` and `int8` quantize tensors: they give the same numbers, bit for bit, and are thousands
of times faster. Sources: Dettmers et al. 2023 (QLoRA), section 3 and appendix E; Nagel et al. 2021,
section 2.2.
"""

import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

from course_pkg.common.arguments import require_choice

OFFSET = 0.9677083  # the quantile that becomes the level 1: about 1 - (1/32 + 1/30) / 2
SMALLEST = 1e-38  # in place of an absmax below it, so that a block of zeros has a reciprocal


def fp32(number: float) -> float:
    """The fp32 number nearest to a Python float."""
    return struct.unpack("f", struct.pack("f", number))[0]


def nf4_levels() -> list[float]:
    """NormalFloat4: 16 levels at quantiles of the standard normal, divided by the largest.

    The positive half has 8 levels and the negative half 7, so that 0 is a level too. The
    probabilities are 9 (and 8) equally spaced numbers from OFFSET to 1/2, in fp32 as in the
    original, so that the levels equal the published ones bit for bit.

    Source: Dettmers et al. 2023, section 3 and appendix E.

    Example:

        >>> [round(level, 4) for level in nf4_levels()[:4]]
        [-1.0, -0.6962, -0.5251, -0.3949]
    """
    quantile = NormalDist().inv_cdf
    positive = [fp32(quantile(p)) for p in _to_a_half(9)[:-1]]
    negative = [fp32(-quantile(p)) for p in _to_a_half(8)[:-1]]
    levels = [*negative, 0.0, *reversed(positive)]
    return [fp32(level / positive[0]) for level in levels]


def fp4_levels() -> list[float]:
    """FP4 as bitsandbytes defines it, a number with a sign, 2 exponent bits e and 1 mantissa bit m.

    For e > 0 a code stands for 2^(4 - e) · (1 + m/2) / 12, so a larger e is a smaller number; for e
    = 0 it stands for 0 or 1/192. (The E2M1 format of the Open Compute Project has 1/12 in its
    place.)
    """
    normal = [2.0 ** (4 - e) * (1 + m / 2) for e in (1, 2, 3) for m in (0, 1)]
    levels = [0.0, 1 / 16, *normal]
    return [fp32(level / 12) for level in (*levels, *(0 - level for level in levels))]


def int4_levels() -> list[float]:
    """Symmetric INT4: the 15 integers from -7 to 7, divided by 7. Code i stands for (i - 7) / 7."""
    return [fp32(i / 7) for i in range(-7, 8)]


LEVELS = {"nf4": nf4_levels, "fp4": fp4_levels, "int4": int4_levels}


@dataclass(frozen=True)
class QuantizedBlock:
    """A block in 4 bits: the code of each number, and the scale that they share."""

    codes: list[int]
    absmax: float
    levels: list[float]  # what the codes stand for, in units of absmax

    def dequantize(self) -> list[float]:
        """The numbers that come back, level · absmax, in fp32."""
        return [fp32(self.levels[code] * self.absmax) for code in self.codes]


def quantize_block(numbers: Sequence[float], book: str = "nf4") -> QuantizedBlock:
    """Quantize the numbers of one block: the nearest level to each, in units of the largest.

    A number between two levels takes the lower one.

    Example:

        >>> block = quantize_block([0.1, -0.7, 1.4, 0.0], "int4")
        >>> block.codes, [round(number, 3) for number in block.dequantize()]
        ([7, 3, 14, 7], [0.0, -0.8, 1.4, 0.0])
    """
    levels = LEVELS[require_choice(book, "code_book", LEVELS)]()
    if not numbers:
        raise ValueError("a block without numbers: give at least one")
    stored = [fp32(number) for number in numbers]
    absmax = max(map(abs, stored))
    inverse = fp32(1 / max(absmax, fp32(SMALLEST)))
    ascending = sorted(range(len(levels)), key=levels.__getitem__)
    middles = [fp32((levels[a] + levels[b]) / 2) for a, b in pairwise(ascending)]
    codes = [ascending[bisect_left(middles, fp32(number * inverse))] for number in stored]
    return QuantizedBlock(codes, absmax, levels)


def _to_a_half(count: int) -> list[float]:
    """Equally spaced fp32 numbers from OFFSET to 1/2, counted from the nearer end, as in torch."""
    start = fp32(OFFSET)
    step = fp32((0.5 - start) / (count - 1))
    first = [fp32(start + fp32(step * i)) for i in range(count // 2)]
    last = [fp32(0.5 - fp32(step * i)) for i in reversed(range(count - count // 2))]
    return first + last


LOWEST = -8  # code of 4 bits
HIGHEST = 7
SMALLEST_SCALE = 2.0**-126  # a scale below it has no finite reciprocal


@dataclass(frozen=True)
class AffineRow:
    """The code of each number, from −8 to 7, and the scale and the zero point that they share."""

    codes: list[int]
    scale: float
    zero: int

    def dequantize(self) -> list[float]:
        """The numbers that come back, scale · (code − zero), in fp32."""
        return [fp32((code - self.zero) * self.scale) for code in self.codes]


def affine_row(numbers: Sequence[float]) -> AffineRow:
    """Quantize numbers to 16 equally spaced levels over their range and 0; ties go to even."""
    if not numbers:
        raise ValueError("a row without numbers: give at least one")
    stored = [fp32(number) for number in numbers]
    low = min(0.0, *stored)
    high = max(0.0, *stored)
    scale = max(fp32(fp32(high - low) / (HIGHEST - LOWEST)), SMALLEST_SCALE)
    zero = _as_code(LOWEST - round(fp32(low / scale)))
    inverse = fp32(1 / scale)
    steps = (round(fp32(number * inverse)) for number in stored)
    return AffineRow([_as_code(step + zero) for step in steps], scale, zero)


def _as_code(number: int) -> int:
    return min(max(number, LOWEST), HIGHEST)
