"""`quantized-inference`: weights for GPTQ, drawn so that no rounding decides between two codes.

Chapter: exercises.
"""

from itertools import combinations
from random import Random
from typing import Any

import torch
from torch import Tensor

from course_pkg.acceleration.quantization import int8
from course_pkg.acceleration.quantization.gptq import Solution, quantize_columns
from course_pkg.acceleration.quantization.grouped import Grid
from course_pkg.grading.questions.draws import normal_arrays

MARGIN = 0.03  # of a step, that weights keep from a midpoint
MAX_DRAWS = 500


class SymmetricGrid(Grid):
    """Codes from -(2^(bits-1) - 1) up, the scale from the largest magnitude, no zero point."""

    def fit(self, weight: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """The scale of each row, unrounded, and zeros."""
        scale = int8.symmetric_scale(weight, bits=self.bits)
        return scale, torch.zeros_like(scale)

    def codes(self, weight: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        """The nearest codes, as floats."""
        return int8.quantize(weight, scale, bits=self.bits).to(weight.dtype)


def solve(W: Tensor, U: Tensor, group_size: int, bits: int) -> Solution:
    """What the course's GPTQ computes, in double precision."""
    groups = torch.arange(W.shape[1]) // group_size
    grid = SymmetricGrid(bits, group_size)
    return quantize_columns(W.double(), U.double(), grid, W.shape[1], groups)


def layer(
    rng: Random, size: int, *, rows: int = 1, groups: int = 1, clamp: bool = False
) -> dict[str, Any]:
    """Rows and an upper factor, whose diagonal is 1 where the division is another property's.

    Drawn until codes are clamped as `clamp` says, and no weight is near a midpoint.
    """
    unit = clamp or groups > 1
    group_size = (5 if clamp else 3) + size
    columns = groups * group_size
    bits = 3 if clamp else 3 + rng.randrange(2)
    for _ in range(MAX_DRAWS):
        diagonal = [1.0 if unit else rng.choice([0.6, 0.75, 1.5, 2.0]) for _ in range(columns)]
        U = torch.diag(torch.tensor(diagonal))
        for i, j in combinations(range(columns), 2):
            U[i, j] = rng.choice([-1, 1]) * rng.randint(30, 90) / 100
        W = torch.from_numpy(normal_arrays(rng, W=(rows, columns))["W"])
        if clamp:  # magnitudes near the largest are the ones that an update pushes out of the range
            W = W.sign() * (1 + W.abs().clamp(max=1) / 4)
        inputs = {"W": W, "U": U, "group_size": group_size, "bits": bits}
        solution = solve(**inputs)
        steps = solution.E * U.diagonal() / solution.scale[:, solution.groups]  # W - Q, in steps
        clear = bool(((steps.abs() - 0.5).abs() > MARGIN).all())
        if clear and bool((steps.abs() > 0.5).any()) == clamp:
            return inputs
    raise ValueError(f"{MAX_DRAWS} draws gave no case with clamp = {clamp}")
