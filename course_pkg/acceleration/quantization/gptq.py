"""GPTQ: quantize a layer's columns one by one, and let the others make up for each error.

The best quantized weights for the inputs X, (columns, tokens), of a layer are::

    arg min over Ŵ on the grid of ‖W X − Ŵ X‖²

For Δ = W − Ŵ this is ½ tr(Δ H Δᵀ), with the Hessian H = 2 X Xᵀ that all rows share. Once column j
is rounded, the columns behind it have a best real value, which the factor U of H⁻¹ = Uᵀ U (upper
triangular) gives for all rows at once::

    E_j = (W_j − Q_j) / U_jj           W_{:,j:} ← W_{:,j:} − E_j U_{j,j:}

So W − Q = E U, and the objective is ½ Σ E², if H is damped as it was for U. Without clamping, the
steps are those of Babai's nearest plane algorithm (Chen et al. 2025, arXiv 2507.18553). The scale
of a group is taken from the updated weights when its first column is reached.

Source: Frantar et al. 2023, sections 3.1 to 3.3, algorithm 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from course_pkg.acceleration.quantization.grouped import Grid, GroupedWeight, require_matrix, store
from course_pkg.acceleration.quantization.layerwise import Statistics
from course_pkg.acceleration.quantization.quantized_linear import QuantizedWeight
from course_pkg.common.arguments import require_between, require_bool, require_integer


@dataclass(frozen=True, eq=False)
class Solution:
    """What GPTQ computes for one weight. Columns are in the order in which they were quantized."""

    permutation: Tensor  # the original index of each column
    Q: Tensor  # quantized weights, (rows, columns)
    E: Tensor  # errors: W − Q = E U
    U: Tensor  # upper, of the damped H⁻¹ = Uᵀ U
    codes: Tensor
    scale: Tensor  # (rows, groups)
    zero: Tensor  # (rows, groups)
    groups: Tensor  # the group of each column


@dataclass(frozen=True)
class GPTQ:
    """GPTQ's settings, and the method for `quantize_layers`.

    Attributes:
        damping: what is added to H's diagonal, as a share of its mean.
        block_size: columns that are updated at once; it changes the speed, not the result.
        act_order: quantize the columns with the largest inputs first.
        static_groups: fit the scales to the original weights. Then groups are neighbors in any
            order; with act_order alone, they are neighbors in the order of quantization.

    Example:

        >>> W = torch.tensor([[0.4, 0.4, 3.0]])
        >>> X = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.9, 0.0], [0.0, 0.0, 1.0]])
        >>> GPTQ(Grid(2, None)).quantize(W, 2 * X @ X.T).dequantize()  # 0 + 1 is close to 0.4 + 0.4
        tensor([[0., 1., 3.]])
    """

    grid: Grid
    damping: float = 0.01
    block_size: int = 128
    act_order: bool = False
    static_groups: bool = False
    calibrated = True

    def __post_init__(self) -> None:
        if not isinstance(self.grid, Grid):
            raise TypeError(f"grid must be a Grid, such as Grid(4, 64), got {self.grid!r:.80}")
        require_between(self.damping, "damping", 0, float("inf"), closed=True)
        require_integer(self.block_size, "block_size")
        require_bool(self.act_order, "act_order")
        require_bool(self.static_groups, "static_groups")

    def quantize_block(
        self, block: nn.Module, statistics: Statistics
    ) -> dict[str, QuantizedWeight]:
        """The new weights of a block's layers, by name."""
        return {
            name: self.quantize(block.get_submodule(name).weight, layer_inputs.hessian)
            for name, layer_inputs in statistics.items()
        }

    def quantize(self, weight: Tensor, hessian: Tensor) -> GroupedWeight:
        """The quantized weight of one layer, (rows, columns), for the Hessian 2 X Xᵀ or a multiple.

        Columns whose inputs are always 0 become 0.
        """
        solution = self.solve(weight, hessian)
        inverse = solution.permutation.argsort()
        groups = solution.groups[inverse]
        width = self.grid.width(weight.shape[1])
        neighbors = torch.equal(groups, torch.arange(len(groups), device=groups.device) // width)
        return store(
            solution.codes[:, inverse],
            solution.scale,
            solution.zero,
            self.grid,
            weight.dtype,
            None if neighbors else groups,
        )

    def solve(self, weight: Tensor, hessian: Tensor) -> Solution:
        """All that `quantize` computes, in fp32, or fp64 if the weight is."""
        columns = require_matrix(weight).shape[1]
        width = self.grid.width(columns)
        H = _require_hessian(hessian, columns).double().clone()
        W = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
        diagonal = H.diagonal()
        mean = diagonal[diagonal > 0].mean()
        dead = diagonal == 0
        W = W.masked_fill(dead, 0)
        diagonal.masked_fill_(dead, mean)  # any number: nothing is propagated to or from there
        permutation = groups = torch.arange(columns, device=W.device)
        if self.act_order:
            permutation = diagonal.argsort(descending=True, stable=True)
        diagonal += self.damping * mean
        U = inverse_factor(H[permutation][:, permutation]).to(W.dtype)
        fitted = None
        if self.static_groups:
            fitted = fit_groups(W, self.grid)
            groups = permutation
        W = W[:, permutation]
        return replace(
            quantize_columns(W, U, self.grid, self.block_size, groups // width, fitted),
            permutation=permutation,
        )


def inverse_factor(hessian: Tensor) -> Tensor:
    """U, upper triangular with a positive diagonal, with H⁻¹ = Uᵀ U, (columns, columns).

    Cholesky's factor of the matrix with rows and columns in reverse order is an upper R with H = R
    Rᵀ, and U = R⁻¹: H is never inverted.

    Example:

        >>> U = inverse_factor(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
        >>> U.T @ U  # 1/3 of [[2, -1], [-1, 2]]
        tensor([[ 0.6667, -0.3333],
                [-0.3333,  0.6667]])
    """
    lower, failed = torch.linalg.cholesky_ex(hessian.flip(0, 1))
    if failed:
        raise ValueError(
            "the damped Hessian is not positive definite: use more calibration tokens or a larger "
            "damping"
        )
    identity = torch.eye(len(hessian), dtype=hessian.dtype, device=hessian.device)
    return torch.linalg.solve_triangular(lower.flip(0, 1), identity, upper=True)


def fit_groups(weight: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """The scale and the zero point of each group of neighbors, (rows, groups) each."""
    width = grid.width(weight.shape[1])
    scale, zero = grid.fit(weight.reshape(-1, width))
    return scale.view(len(weight), -1), zero.view(len(weight), -1)


def quantize_columns(
    weight: Tensor,
    U: Tensor,
    grid: Grid,
    block_size: int,
    groups: Tensor,
    fitted: tuple[Tensor, Tensor] | None = None,
) -> Solution:
    """Algorithm 1 on columns in the given order.

    Args:
        weight: (rows, columns). U: (columns, columns), upper.
        groups: the group of each column.
        fitted: the scales and zero points, (rows, groups), or None, to fit them on the way.
    """
    rows, columns = weight.shape
    width = grid.width(columns)
    W = weight.clone()
    Q, E, codes = torch.empty_like(W), torch.empty_like(W), torch.empty_like(W)
    if fitted is None:
        scale, zero = W.new_empty(rows, columns // width), W.new_empty(rows, columns // width)
    else:
        scale, zero = fitted
    for start, end in column_blocks(columns, width, block_size):
        for j in range(start, end):
            group = int(groups[j])
            if fitted is None and j % width == 0:
                scale[:, group, None], zero[:, group, None] = grid.fit(W[:, j : j + width])
            s = scale[:, group]
            z = zero[:, group]
            codes[:, j] = grid.codes(W[:, j], s, z)
            Q[:, j] = s * (codes[:, j] - z)
            E[:, j] = (W[:, j] - Q[:, j]) / U[j, j]
            W[:, j:end] -= E[:, j, None] * U[j, j:end]
        W[:, end:] -= E[:, start:end] @ U[start:end, end:]
    identity = torch.arange(columns, device=W.device)
    return Solution(identity, Q, E, U, codes, scale, zero, groups)


def column_blocks(columns: int, width: int, size: int) -> Iterator[tuple[int, int]]:
    """Start and end of blocks of at most `size` columns.

    A block holds whole groups of `width` columns, or is a part of one: then every weight of a group
    is up to date when the group begins.
    """
    if size >= width:
        size -= size % width
    span = max(size, width)
    for first in range(0, columns, span):
        last = min(first + span, columns)
        for start in range(first, last, size):
            yield start, min(start + size, last)


def _require_hessian(hessian: Tensor, columns: int) -> Tensor:
    if require_matrix(hessian).shape != (columns, columns):
        raise ValueError(
            f"the weight has {columns} columns, so the Hessian must be ({columns}, {columns}); "
            f"got {tuple(hessian.shape)}"
        )
    diagonal = hessian.diagonal()
    if not torch.allclose(hessian, hessian.T, rtol=1e-3, atol=1e-4 * float(diagonal.abs().max())):
        raise ValueError("the Hessian is not symmetric; give 2 X Xᵀ of the layer's inputs")
    if (diagonal < 0).any() or not (diagonal > 0).any():
        raise ValueError(
            "the Hessian's diagonal must be 0 or above, with one number above 0: no calibration "
            "input reached this layer, or this is not 2 X Xᵀ"
        )
    return hessian
