"""A row of numbers on an affine grid of 16 levels, number by number, without torch.

The grid has a scale and a zero point, as on the page on quantized inference: it covers the range of
the row, and 0 always has a code. `int8` quantizes tensors: it gives the same numbers, bit for bit.

Source: Nagel et al. 2021, section 2.2. Chapter: acceleration/quantized-inference.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from course_pkg.acceleration.quantization.levels import fp32

LOWEST = -8  # code of 4 bits
HIGHEST = 7
SMALLEST_SCALE = 2.0**-126  # a scale below it has no finite reciprocal


@dataclass(frozen=True)
class AffineRow:
    """The code of each number, and the scale and the zero point that they share.

    codes and zero: integers from −8 to 7. scale: positive.
    """

    codes: list[int]
    scale: float
    zero: int

    def dequantize(self) -> list[float]:
        """The numbers that come back, scale · (code − zero), in fp32."""
        return [fp32((code - self.zero) * self.scale) for code in self.codes]


def affine_row(numbers: Sequence[float]) -> AffineRow:
    """Quantize numbers to 16 equally spaced levels over their range and 0.

    numbers: finite, at most 10³⁸ in magnitude; rounded to fp32 first. Ties go to the even integer.
    Raises ValueError without numbers.

    >>> row = affine_row([-0.4, 1.3, 2.6])
    >>> row.codes, round(row.scale, 3), row.zero
    ([-8, 0, 7], 0.2, -6)
    """
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
