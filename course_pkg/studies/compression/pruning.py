"""Pruning by a score of each weight: magnitude, and Wanda's magnitude times input norm.

    magnitude   |W_ij|                 usually among all weights of a layer
    Wanda       |W_ij| · ‖X_j‖₂        among the weights of a row; X_j: feature j of all inputs

How many weights stay, and which compete, is the matter of a pattern (`sparsity_patterns`). The
weights that stay keep their values; `sparse_gpt` changes those too.

`prune_layers` prunes a model block by block: the inputs of a block come from the pruned blocks
before it.

Sources: Han et al. 2015, section 3 (magnitude); Sun et al. 2024, "A Simple and Effective Pruning
Approach for Large Language Models" (Wanda), section 3. Chapter: deployment/compression.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from course_pkg.acceleration.quantization.calibration import (
    READERS,
    InputStatistics,
    Statistics,
    quantize_layers,
)
from course_pkg.studies.compression.sparsity_patterns import Pattern

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
    """Remove the weights with the smallest magnitudes; no calibration is needed.

    >>> from course_pkg.studies.compression.sparsity_patterns import Unstructured
    >>> Magnitude(Unstructured(0.5, "layer")).prune(torch.tensor([[1.0, -3.0], [2.0, 1.0]])).weight
    tensor([[ 0., -3.],
            [ 2.,  0.]])
    """

    pattern: Pattern
    calibrated = False

    def prune(self, weight: Tensor, statistics: InputStatistics | None = None) -> Pruned:
        """The pruned weight and its mask."""
        return masked(weight, self.pattern.mask(weight.detach().abs()))


@dataclass(frozen=True)
class Wanda:
    """Remove the weights with the smallest |W_ij| · ‖X_j‖₂; the paper's compete in each row.

    Removing one weight alone changes the layer's outputs by exactly its score, in the norm over all
    tokens. Source: Sun et al. 2024, equation 1.

    >>> from course_pkg.studies.compression.sparsity_patterns import Unstructured
    >>> statistics = InputStatistics()
    >>> statistics.add(torch.tensor([[3.0, 1.0], [4.0, 0.0]]))  # ‖X_0‖ = 5, ‖X_1‖ = 1
    >>> Wanda(Unstructured(0.5, "row")).prune(torch.tensor([[1.0, -3.0]]), statistics).weight
    tensor([[1., 0.]])
    """

    pattern: Pattern
    calibrated = True

    def prune(self, weight: Tensor, statistics: InputStatistics | None = None) -> Pruned:
        """The pruned weight and its mask. Raises ValueError without statistics of its inputs."""
        found = require_statistics(statistics, weight)
        return masked(weight, self.pattern.mask(wanda_scores(weight, input_norms(found))))


def input_norms(statistics: InputStatistics) -> Tensor:
    """‖X_j‖₂ of each input feature over all calibration tokens, (columns,): √(tokens · H_jj / 2).

    >>> statistics = InputStatistics()
    >>> statistics.add(torch.tensor([[3.0, 1.0], [4.0, 0.0]]))
    >>> input_norms(statistics)
    tensor([5., 1.])
    """
    return (statistics.tokens / 2 * statistics.hessian.diagonal()).sqrt()


def wanda_scores(weight: Tensor, norms: Tensor) -> Tensor:
    """|W_ij| · ‖X_j‖₂, (rows, columns). weight: (rows, columns). norms: (columns,).

    >>> wanda_scores(torch.tensor([[1.0, -3.0]]), torch.tensor([5.0, 1.0]))
    tensor([[5., 3.]])
    """
    return weight.detach().abs().to(norms.dtype) * norms


def masked(weight: Tensor, mask: Tensor) -> Pruned:
    """The weight with zeros where the mask is False."""
    return Pruned(weight.detach().masked_fill(~mask, 0), mask)


@torch.no_grad()
def prune_layers(
    model: nn.Module,
    method: PruningMethod,
    batches: Iterable[Tensor] = (),
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """Prune the linear layers in the model's blocks, in place; return the masks by full name.

    The layers stay nn.Linear, with zeros in their weights. model, batches, progress and errors: as
    for `quantization.calibration.quantize_layers`, which goes through the blocks. Also raises
    ValueError if a layer cannot have the pattern; the model is then unchanged.

    >>> from course_pkg.lm.load import load
    >>> from course_pkg.studies.compression.sparsity_patterns import SemiStructured
    >>> model = load("tiny").model
    >>> masks = prune_layers(model, Magnitude(SemiStructured(2, 4)))
    >>> len(masks), masks["model.layers.0.mlp.up_proj"].float().mean().item()
    (14, 0.5)
    """
    names = {module: name for name, module in model.named_modules()}
    for module, name in names.items():
        if isinstance(module, nn.Linear) and name.endswith(PRUNED):
            method.pattern.check(module.in_features)
    pruner = _InPlace(method, names)
    quantize_layers(model, pruner, batches, progress)
    return pruner.masks


class _InPlace:
    """A method for `quantize_layers` that changes weights and replaces no layer."""

    def __init__(self, method: PruningMethod, names: dict[nn.Module, str]) -> None:
        self.method = method
        self.names = names
        self.calibrated = method.calibrated
        self.masks: dict[str, Tensor] = {}

    def quantize_block(self, block: nn.Module, statistics: Statistics) -> dict:
        """Prune the weights of a block; there is nothing to replace."""
        for name in (name for names in READERS for name in names):
            layer = block.get_submodule(name)
            pruned = self.method.prune(layer.weight, statistics.get(name))
            layer.weight.copy_(pruned.weight)
            self.masks[self.names[layer]] = pruned.mask
        return {}


def require_statistics(statistics: InputStatistics | None, weight: Tensor) -> InputStatistics:
    """Return the statistics if they are of inputs of this weight; otherwise raise ValueError."""
    if statistics is None or statistics.hessian.shape != (weight.shape[1],) * 2:
        given = None if statistics is None else tuple(statistics.hessian.shape)
        raise ValueError(
            f"the method needs statistics of inputs of size {weight.shape[1]}, got {given}; give "
            "calibration batches, or `calibrate` the model"
        )
    return statistics
