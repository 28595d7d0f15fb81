"""SparseGPT: remove weights column by column, and let the columns behind make up for them.

GPTQ rounds a column; SparseGPT sets some of its weights to 0. The rest is the same: the Hessian
H = 2 X Xᵀ of the layer's inputs, the upper factor U of H⁻¹ = Uᵀ U, and for each column j

    E_j = (W_j − Q_j) / U_jj           W_{:,j:} ← W_{:,j:} − E_j U_{j,j:}

Q_j is W_j, as updated so far, where the mask keeps it (then E_j = 0), and 0 elsewhere. Removing a
weight w_j costs w_j² / U_jj² in the objective tr(Δ H Δᵀ): that is the saliency of Optimal Brain
Surgeon when the columns before j are fixed. By these costs the mask is chosen, for a block of
columns when its first one is reached, so that it sees the updated weights; for n:m, block = m.

W − Q = E U holds here too, and the objective is Σ E². A column on the left can't make up for one on
its right, so the result is not the best one for its mask, and in rare cases it is even worse than
zeros without any update; it is the best one where all that is removed lies left of all that stays.

With a grid, the weights that stay are rounded as in GPTQ, in the same pass.

Sources: Frantar and Alistarh 2023, "SparseGPT", sections 3.2 to 3.4, algorithm 1 (where H⁻¹ stands
for U); Hassibi and Stork 1993 (Optimal Brain Surgeon). Chapter: deployment/compression.
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

    Q: the new weight. mask: True where a weight stays. E: errors, scaled so that W − Q = E U.
    U: the upper factor of the damped H⁻¹, (columns, columns). codes, and scale and zero,
    (rows, groups): those of the grid, or None.
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

    damping: what is added to H's diagonal, as a share of its mean. block_size: columns that are
    updated at once, and, unless the pattern is n:m, whose mask is chosen at once; with per="layer",
    all rows of a block compete. grid: to which the weights that stay are rounded; then it is also a
    method for `quantize_layers`, which stores them in codes. Raises ValueError or TypeError for
    settings out of range.

    >>> W = torch.tensor([[1.0, 1.0, 2.0]])
    >>> X = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.9, 0.0], [0.0, 0.0, 1.0]])
    >>> method = SparseGPT(Unstructured(1 / 3, "row"), damping=0.0)
    >>> method.solve(W, 2 * X @ X.T).Q  # one of two equal inputs takes over the weight of the other
    tensor([[0.0000, 2.0497, 2.0000]])
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
            raise TypeError(
                f"pattern must be Unstructured or SemiStructured, got {self.pattern!r:.80}"
            )
        if not isinstance(self.grid, Grid | None):
            raise TypeError(f"grid must be a Grid or None, got {self.grid!r:.80}")

    def prune(self, weight: Tensor, statistics: InputStatistics | None = None) -> Pruned:
        """The new weight and its mask. Raises ValueError without statistics of its inputs."""
        inputs = require_statistics(statistics, weight)
        solution = self.solve(weight, inputs.hessian)
        return Pruned(solution.Q.to(weight.dtype), solution.mask)

    def quantize_block(self, block: nn.Module, statistics: Statistics) -> dict[str, GroupedWeight]:
        """The new weights of a block's layers in codes. Raises ValueError without a grid."""
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

        weight: (rows, columns). hessian: 2 X Xᵀ or a multiple, (columns, columns). mask: what
        stays, (rows, columns), such as Wanda's; None to choose it. Columns whose inputs are always
        0 become 0. Raises ValueError if the shapes do not fit, a number is not finite, or the
        damped Hessian is not positive definite.
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
    """The upper factor U of (H + damping · mean diagonal)⁻¹, and which inputs are always 0.

    hessian: (columns, columns). Returns fp64, (columns, columns), and bool, (columns,). Raises
    ValueError if no input is above 0 or the damped Hessian is not positive definite.
    """
    H = hessian.double().clone()
    diagonal = H.diagonal()
    dead = diagonal == 0
    if dead.all():
        raise ValueError("the Hessian's diagonal is 0: no calibration input reached this layer")
    mean = diagonal[~dead].mean()
    diagonal.masked_fill_(dead, mean)  # any number: nothing is moved to or from there
    diagonal += damping * mean
    return inverse_factor(H), dead
