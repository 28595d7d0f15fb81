"""Which weights of a layer stay: a share of all, a share of each row, or n of every m.

A method (`pruning`) scores each weight. A pattern says how many of them stay, and which compete:
`Unstructured` removes a share; `SemiStructured(n, m)` keeps n of every m neighbors in a row, that
is along the input dimension, so 2:4 and 1:4 remove 1/2 and 3/4. A mask is True where a weight
stays. The counts are exact: of equal scores, the first in the row stays, and where a whole layer
competes, the first row by row.

Sources: Mishra et al. 2021, "Accelerating Sparse Deep Neural Networks" (2:4); Zhou et al. 2021
(n:m). Chapter: deployment/compression.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from course_pkg.common.arguments import require_choice, require_integer, require_number

Per = Literal["layer", "row"]


def pruned_count(size: int, sparsity: float) -> int:
    """How many of `size` weights a sparsity removes: the nearest integer; a half is rounded down.

    sparsity: from 0 to 1, read as the decimal number that one writes. (In floats, 100 · 0.29 is
    28.999999999999996, and int() of it is 28.) Raises ValueError outside of this range.

    >>> pruned_count(100, 0.29), pruned_count(3, 1 / 3), pruned_count(3, 0.5), pruned_count(3, 1)
    (29, 1, 1, 3)
    """
    require_integer(size, "size", least=0)
    exact = Fraction(str(require_sparsity(sparsity))) * size
    return math.ceil(exact - Fraction(1, 2))


def keep_largest(scores: Tensor, kept: int) -> Tensor:
    """A mask, True at the `kept` largest scores along the last dimension; of equal ones, the first.

    scores: (..., n). Returns a bool tensor of the same shape.

    >>> keep_largest(torch.tensor([1.0, 3.0, 1.0, 1.0]), 2).tolist()
    [True, True, False, False]
    """
    order = scores.argsort(dim=-1, descending=True, stable=True)
    mask = torch.zeros_like(scores, dtype=torch.bool)
    return mask.scatter_(-1, order[..., :kept], True)


class Pattern(Protocol):
    """How many weights stay, and which compete: `Unstructured` or `SemiStructured`."""

    def check(self, columns: int) -> None:
        """Raise ValueError if a weight with so many columns cannot have the pattern."""

    def mask(self, scores: Tensor, before: int = 0) -> Tensor:
        """True where a weight stays, for scores, (rows, columns).

        before: how many columns to the left of these have got their masks, for methods that choose
        them block by block; the counts of the blocks add up to that of the whole.
        """


@dataclass(frozen=True)
class Unstructured:
    """Remove a share of the weights of each layer, or of each row of it.

    sparsity: from 0 to 1; the exact numbers are those of `pruned_count`. per: "layer", where all
    weights of a layer compete, or "row". Raises ValueError for other values.

    >>> scores = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> [Unstructured(0.5, per).mask(scores).tolist() for per in ("layer", "row")]
    [[[False, False], [True, True]], [[False, True], [False, True]]]
    """

    sparsity: float
    per: Per

    def __post_init__(self) -> None:
        require_sparsity(self.sparsity)
        require_choice(self.per, "per", get_args(Per))

    def check(self, columns: int) -> None:
        """Every number of columns is possible."""

    def mask(self, scores: Tensor, before: int = 0) -> Tensor:
        """True where a weight stays; see `Pattern`."""
        rows = len(require_scores(scores))
        competing = scores if self.per == "row" else scores.reshape(1, -1)
        size = competing.shape[1]  # how many compete
        earlier = before if self.per == "row" else rows * before
        pruned = pruned_count(earlier + size, self.sparsity) - pruned_count(earlier, self.sparsity)
        return keep_largest(competing, size - pruned).view_as(scores)


@dataclass(frozen=True)
class SemiStructured:
    """Keep n of every m neighboring weights of a row (the input dimension): 2:4 by default.

    n counts what stays, as in the names 2:4 and 1:4. Raises ValueError unless 1 <= n <= m, and in
    `mask` if m does not divide the columns.

    >>> SemiStructured(1, 4).mask(torch.tensor([[1.0, 2.0, 0.0, 2.0]])).tolist()
    [[False, True, False, False]]
    """

    n: int = 2
    m: int = 4

    def __post_init__(self) -> None:
        require_integer(self.n, "n")
        require_integer(self.m, "m", least=self.n)

    def check(self, columns: int) -> None:
        """Raise ValueError unless m divides the columns."""
        if columns % self.m:
            raise ValueError(
                f"{self.n}:{self.m} needs a multiple of {self.m} columns, got {columns}"
            )

    def mask(self, scores: Tensor, before: int = 0) -> Tensor:
        """True where a weight stays; see `Pattern`."""
        self.check(require_scores(scores).shape[1])
        groups = scores.unflatten(1, (-1, self.m))  # (rows, groups, m)
        return keep_largest(groups, self.n).flatten(1)


def require_sparsity(sparsity: float) -> float:
    """Return the sparsity if it is from 0 to 1; otherwise raise ValueError."""
    if not 0 <= require_number(sparsity, "sparsity") <= 1:
        raise ValueError(f"sparsity must be from 0 to 1, the share to remove, got {sparsity}")
    return sparsity


def require_scores(scores: Tensor) -> Tensor:
    """Return the scores if they are a matrix of finite numbers; otherwise raise ValueError."""
    if scores.dim() != 2 or not torch.isfinite(scores).all():
        raise ValueError(
            f"expected finite scores, (rows, columns), got {tuple(scores.shape)}"
            f"{'' if torch.isfinite(scores).all() else ' with NaN or infinite ones'}"
        )
    return scores
