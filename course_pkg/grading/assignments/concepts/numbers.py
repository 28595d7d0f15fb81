"""`concepts`: numbers in lists or arrays, and what some examples compute from them.

Chapter: exercises.
"""

import math
from itertools import combinations
from typing import Any

from course_pkg.acceleration.quantization.levels import quantize_block
from course_pkg.grading.questions.comparators import describe_type
from course_pkg.grading.questions.plain_values import Array

LARGEST = 1e6  # of a number in an example
SWEEPS = 30  # of rotations, of which a matrix as small as these needs fewer than ten


def numbers_of(given: Any, shape: tuple[int, ...]) -> list[float] | str:
    """The numbers of nested lists or an array of that shape, in order; or what is wrong."""
    try:
        found_shape, found = _flattened(given)
    except (TypeError, OverflowError):
        return "expected numbers in lists of equal lengths"
    if found_shape != shape:
        return f"expected the shape {shape}, but {found_shape} was given"
    good = all(abs(x) <= LARGEST for x in found)  # NaN isn't
    return found if good else "expected finite numbers of at most a million"


def _flattened(given: Any) -> tuple[tuple[int, ...], list[float]]:
    """The shape of nested lists or arrays, and their numbers; TypeError if lengths differ."""
    if isinstance(given, Array):
        given = given.numpy().tolist()
    if isinstance(given, int | float):
        return (), [float(given)]
    if not isinstance(given, list | tuple):
        raise TypeError(describe_type(given))
    parts = [_flattened(part) for part in given]
    shapes = {shape for shape, _ in parts} or {()}
    if len(shapes) > 1:
        raise TypeError("lists of different lengths")
    return (len(given), *shapes.pop()), [x for _, numbers in parts for x in numbers]


def rank_one_share(numbers: list[float], width: int) -> float:
    """The share of a matrix's squared norm that its best approximation of rank 1 keeps.

    That is the largest squared singular value. Rotations of pairs of rows make all rows orthogonal;
    then these values are the rows' squared lengths (Hestenes 1958). NaN for a matrix of zeros.
    """
    rows = [numbers[at : at + width] for at in range(0, len(numbers), width)]
    least = 1e-15 * _product(numbers, numbers)
    for _ in range(SWEEPS):
        pairs = combinations(range(len(rows)), 2)
        if not any([_make_orthogonal(rows, i, j, least) for i, j in pairs]):
            break
    squares = [_product(row, row) for row in rows]
    return max(squares) / sum(squares) if any(squares) else math.nan


def _make_orthogonal(rows: list[list[float]], i: int, j: int, least: float) -> bool:
    """Rotate two rows so that their product is 0, unless it is that small; whether it was not."""
    first, second = rows[i], rows[j]
    both = _product(first, second)
    if abs(both) <= least:
        return False
    zeta = (_product(second, second) - _product(first, first)) / (2 * both)
    tangent = math.copysign(1 / (abs(zeta) + math.hypot(1, zeta)), zeta)
    cosine = 1 / math.hypot(1, tangent)
    sine = cosine * tangent
    rows[i] = [cosine * x - sine * y for x, y in zip(first, second, strict=True)]
    rows[j] = [sine * x + cosine * y for x, y in zip(first, second, strict=True)]
    return True


def _product(first: list[float], second: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(first, second, strict=True))


def nf4(weights: list[float], size: int) -> list[float]:
    """What comes back from NF4 with a scale for each block of that size."""
    blocks = (weights[at : at + size] for at in range(0, len(weights), size))
    return [x for block in blocks for x in quantize_block(block).dequantize()]


def attention(scores: list[float], values: list[float]) -> float:
    """The mean of the values, weighted with the softmax of their scores."""
    powers = [math.exp(score - max(scores)) for score in scores]
    return sum(p * value for p, value in zip(powers, values, strict=True)) / sum(powers)
