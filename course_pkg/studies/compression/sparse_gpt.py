"""SparseGPT: remove weights column by column, and let the columns behind make up for them::

    E_j = (W_j − Q_j) / U_jj           W_{:,j:} ← W_{:,j:} − E_j U_{j,j:}           H⁻¹ = Uᵀ U

Source: Frantar and Alistarh 2023, sections 3.2 to 3.4, algorithm 1 (where H⁻¹ stands for U).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_pkg.acceleration.quantization.gptq import column_blocks, inverse_factor
from course_pkg.acceleration.quantization.grouped import Grid, GroupedWeight, require_matrix, store
from course_pkg.acceleration.quantization.layerwise import InputStatistics, Statistics
from course_pkg.common.arguments import require_between, require_integer
from course_pkg.studies.compression.pruning import (
    Pattern,
    Pruned,
    SemiStructured,
    Unstructured,
    require_statistics,
)


@dataclass(frozen=True, eq=False)
class SparseSolution:
    """What SparseGPT computes for one weight, (rows, columns).

    Attributes:
        Q: the new weight.
        mask: True where a weight stays.
        E: errors, scaled so that W − Q = E U; the objective is Σ E².
        U: the upper factor of the damped H⁻¹, (columns, columns).
        codes, scale, zero: those of the grid, or None.
    """

    Q: Tensor
    mask: Tensor
    E: Tensor
    U: Tensor
    codes: Tensor | None = None
    scale: Tensor | None = None
    zero: Tensor | None = None


@dataclass(frozen=True)
class SparseGPT:
    """SparseGPT's settings, and the method for `prune_layers`.

    Attributes:
        damping: what is added to H's diagonal, as a share of its mean.
        block_size: columns that are updated at once, and, unless the pattern is n:m, masked at
            once.
        grid: for the weights that stay; then it is also a method for `quantize_layers`.
    """

    pattern: Pattern
    damping: float = 0.01
    block_size: int = 128
    grid: Grid | None = None
    calibrated = True

    def __post_init__(self) -> None:
        require_between(self.damping, "damping", 0, float("inf"), closed=True)
        require_integer(self.block_size, "block_size")
        if not isinstance(self.pattern, Unstructured | SemiStructured):
            raise TypeError(f"pattern must be a pattern of `pruning`, got {self.pattern!r:.80}")
        if not isinstance(self.grid, Grid | None):
            raise TypeError(f"grid must be a Grid or None, got {self.grid!r:.80}")

    def prune(self, weight: Tensor, statistics: InputStatistics | None = None) -> Pruned:
        inputs = require_statistics(statistics, weight)
        solution = self.solve(weight, inputs.hessian)
        return Pruned(solution.Q.to(weight.dtype), solution.mask)

    def quantize_block(self, block: nn.Module, statistics: Statistics) -> dict[str, GroupedWeight]:
        """The new weights of a block's layers in codes."""
        if self.grid is None:
            raise ValueError("SparseGPT has no grid: set one, or use prune_layers")
        stored = {}
        for name, inputs in statistics.items():
            weight = block.get_submodule(name).weight
            solution = self.solve(weight, inputs.hessian)
            stored[name] = store(
                solution.codes, solution.scale, solution.zero, self.grid, weight.dtype
            )
        return stored

    def solve(self, weight: Tensor, hessian: Tensor, mask: Tensor | None = None) -> SparseSolution:
        """All that is computed for a weight, in fp32, or fp64 if the weight is.

        Args:
            weight: (rows, columns).
            hessian: 2 X Xᵀ or a multiple, (columns, columns).
            mask: what stays, (rows, columns), such as Wanda's; None to choose it.
        """
        rows, columns = require_matrix(weight).shape
        self.pattern.check(columns)
        if hessian.shape != (columns, columns) or (mask is not None and mask.shape != weight.shape):
            raise ValueError(
                f"a weight of {rows} rows and {columns} columns needs a Hessian ({columns}, "
                f"{columns}) and a mask of its own shape; got {tuple(hessian.shape)} and "
                f"{None if mask is None else tuple(mask.shape)}"
            )
        U, dead = damped_factor(hessian, self.damping)
        W = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
        return self._columns(W.masked_fill(dead, 0), U.to(W.dtype), mask)

    def _columns(self, weight: Tensor, U: Tensor, mask: Tensor | None) -> SparseSolution:
        """Algorithm 1. weight: (rows, columns). U: (columns, columns)."""
        columns = weight.shape[1]
        fixed = mask is not None
        mask = mask if fixed else torch.zeros_like(weight, dtype=torch.bool)
        W = weight.clone()
        Q = torch.empty_like(W)
        E = torch.empty_like(W)
        rounding = _Rounding(self.grid, W) if self.grid else None
        width = self.pattern.m if isinstance(self.pattern, SemiStructured) else self.block_size
        for start, end in column_blocks(columns, width, max(self.block_size, width)):
            for j in range(start, end):
                if j % width == 0 and not fixed:
                    chosen = slice(j, min(j + width, columns))
                    costs = (W[:, chosen] / U.diagonal()[chosen]).square()
                    mask[:, chosen] = self.pattern.mask(costs, before=j)
                column = rounding.column(W, j) if rounding else W[:, j]
                Q[:, j] = torch.where(mask[:, j], column, 0)
                E[:, j] = (W[:, j] - Q[:, j]) / U[j, j]
                W[:, j:end] -= E[:, j, None] * U[j, j:end]
            W[:, end:] -= E[:, start:end] @ U[start:end, end:]
        if rounding is None:
            return SparseSolution(Q, mask, E, U)
        return SparseSolution(Q, mask, E, U, rounding.codes(Q), rounding.scale, rounding.zero)


class _Rounding:
    """The grid of each group of columns, fitted to the updated weights when the group begins."""

    def __init__(self, grid: Grid, weight: Tensor) -> None:
        self.grid = grid
        self.width = grid.width(weight.shape[1])
        self.scale = weight.new_empty(len(weight), weight.shape[1] // self.width)
        self.zero = torch.empty_like(self.scale)

    def column(self, W: Tensor, j: int) -> Tensor:
        """Column j on the grid, (rows,)."""
        group = j // self.width
        if j % self.width == 0:
            fitted = self.grid.fit(W[:, j : j + self.width])
            self.scale[:, group, None], self.zero[:, group, None] = fitted
        scale = self.scale[:, group]
        zero = self.zero[:, group]
        return scale * (self.grid.codes(W[:, j], scale, zero) - zero)

    def codes(self, Q: Tensor) -> Tensor:
        """The codes of weights on the grid, (rows, columns); a zero is always on it."""
        scale = self.scale.repeat_interleave(self.width, 1)
        zero = self.zero.repeat_interleave(self.width, 1)
        return self.grid.codes(Q, scale, zero)


def damped_factor(hessian: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """The factor U of (H + damping · mean diagonal)⁻¹, in fp64, and which inputs are always 0."""
    H = hessian.double().clone()
    diagonal = H.diagonal()
    dead = diagonal == 0
    if dead.all():
        raise ValueError("the Hessian's diagonal is 0: no calibration input reached this layer")
    mean = diagonal[~dead].mean()
    diagonal.masked_fill_(dead, mean)  # any number: nothing is moved to or from there
    diagonal += damping * mean
    return inverse_factor(H), dead
