"""Pruning: a score for each weight, and a pattern: how many weights stay, and which compete.

Sources: Han et al. 2015 (magnitude); Sun et al. 2024 (Wanda), section 3; Mishra et al. 2021 (2:4).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from course_pkg.acceleration.quantization.layerwise import (
    READERS,
    InputStatistics,
    Statistics,
    quantize_layers,
)
from course_pkg.common.arguments import require_choice, require_integer, require_number

Per = Literal["layer", "row"]


def pruned_count(size: int, sparsity: float) -> int:
    """How many of `size` weights a sparsity removes: the nearest integer; a half is rounded down.

    Args:
        sparsity: from 0 to 1, read as the decimal number that one writes.

    >>> pruned_count(100, 0.29), pruned_count(3, 1 / 3), pruned_count(3, 0.5), pruned_count(3, 1)
    (29, 1, 1, 3)
    """
    require_integer(size, "size", least=0)
    exact = Fraction(str(require_sparsity(sparsity))) * size
    return math.ceil(exact - Fraction(1, 2))


def keep_largest(scores: Tensor, kept: int) -> Tensor:
    """A mask, True at the `kept` largest scores along the last dimension; of equal ones, the first.

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

        Args:
            before: columns on the left that have their masks; the counts of blocks add up.
        """


@dataclass(frozen=True)
class Unstructured:
    """Remove a share of the weights, which compete in each "layer" or in each "row" of it."""

    sparsity: float
    per: Per

    def __post_init__(self) -> None:
        require_sparsity(self.sparsity)
        require_choice(self.per, "per", get_args(Per))

    def check(self, columns: int) -> None:
        """Every number of columns is possible."""

    def mask(self, scores: Tensor, before: int = 0) -> Tensor:
        rows = len(require_scores(scores))
        competing = scores if self.per == "row" else scores.reshape(1, -1)
        size = competing.shape[1]  # how many compete
        earlier = before if self.per == "row" else rows * before
        pruned = pruned_count(earlier + size, self.sparsity) - pruned_count(earlier, self.sparsity)
        return keep_largest(competing, size - pruned).view_as(scores)


@dataclass(frozen=True)
class SemiStructured:
    """Keep n of every m neighboring weights of a row (the input dimension): 2:4 by default."""

    n: int = 2
    m: int = 4

    def __post_init__(self) -> None:
        require_integer(self.n, "n")
        require_integer(self.m, "m", least=self.n)

    def check(self, columns: int) -> None:
        if columns % self.m:
            pattern = f"{self.n}:{self.m}"
            raise ValueError(f"{pattern} needs a multiple of {self.m} columns, got {columns}")

    def mask(self, scores: Tensor, before: int = 0) -> Tensor:
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


PRUNED = tuple(f".{name}" for names in READERS for name in names)  # endings of the layers' names


@dataclass(frozen=True, eq=False)
class Pruned:
    """A pruned weight, (rows, columns), 0 where the mask, of the same shape, is False."""

    weight: Tensor
    mask: Tensor


class PruningMethod(Protocol):
    """How one weight is pruned. calibrated: whether it needs statistics of the layer's inputs."""

    pattern: Pattern
    calibrated: bool

    def prune(self, weight: Tensor, statistics: InputStatistics | None = None) -> Pruned:
        """The pruned weight and its mask. weight: (rows, columns)."""


@dataclass(frozen=True)
class Magnitude:
    """Remove the weights with the smallest magnitudes; no calibration is needed."""

    pattern: Pattern
    calibrated = False

    def prune(self, weight: Tensor, statistics: InputStatistics | None = None) -> Pruned:
        return masked(weight, self.pattern.mask(weight.detach().abs()))


@dataclass(frozen=True)
class Wanda:
    """Remove the weights with the smallest ``|W_ij| · ‖X_j‖₂``; the paper's compete in each row.

    Removing one weight alone changes the layer's outputs by exactly its score.
    """

    pattern: Pattern
    calibrated = True

    def prune(self, weight: Tensor, statistics: InputStatistics | None = None) -> Pruned:
        inputs = require_statistics(statistics, weight)
        return masked(weight, self.pattern.mask(wanda_scores(weight, input_norms(inputs))))


def input_norms(statistics: InputStatistics) -> Tensor:
    """‖X_j‖₂ of each input feature over all tokens, (columns,): √(tokens · H_jj / 2)."""
    return (statistics.tokens / 2 * statistics.hessian.diagonal()).sqrt()


def wanda_scores(weight: Tensor, norms: Tensor) -> Tensor:
    """``|W_ij| · ‖X_j‖₂``, (rows, columns). norms: (columns,)."""
    return weight.detach().abs().to(norms.dtype) * norms


def masked(weight: Tensor, mask: Tensor) -> Pruned:
    """The weight with zeros where the mask is False."""
    return Pruned(weight.detach().masked_fill(~mask, 0), mask)


@torch.no_grad()
def prune_layers(
    model: nn.Module, method: PruningMethod, batches: Iterable[Tensor] = ()
) -> dict[str, Tensor]:
    """Prune the linear layers in the model's blocks, in place; return the masks by full name.

    A block's inputs come from the pruned blocks before it. model, batches: as for
    `quantize_layers`. If a layer cannot have the pattern, the model is unchanged.
    """
    names = {module: name for name, module in model.named_modules()}
    for module, name in names.items():
        if isinstance(module, nn.Linear) and name.endswith(PRUNED):
            method.pattern.check(module.in_features)
    pruner = _InPlace(method, names)
    quantize_layers(model, pruner, batches)
    return pruner.masks


class _InPlace:
    """A method for `quantize_layers` that changes weights and replaces no layer."""

    def __init__(self, method: PruningMethod, names: dict[nn.Module, str]) -> None:
        self.method = method
        self.names = names
        self.calibrated = method.calibrated
        self.masks: dict[str, Tensor] = {}

    def quantize_block(self, block: nn.Module, statistics: Statistics) -> dict:
        for name in (name for names in READERS for name in names):
            layer = block.get_submodule(name)
            pruned = self.method.prune(layer.weight, statistics.get(name))
            layer.weight.copy_(pruned.weight)
            self.masks[self.names[layer]] = pruned.mask
        return {}


def require_statistics(statistics: InputStatistics | None, weight: Tensor) -> InputStatistics:
    """Return the statistics if they are of inputs of this weight; otherwise raise ValueError."""
    if statistics is None or statistics.hessian.shape != (weight.shape[1],) * 2:
        shape = None if statistics is None else tuple(statistics.hessian.shape)
        raise ValueError(
            f"the method needs statistics of inputs of size {weight.shape[1]}, got {shape}; give "
            "calibration batches, or `calibrate` the model"
        )
    return statistics
