"""The norm of a gradient that is spread over ranks, and clipping by it.

Clipping multiplies the whole gradient by one number, so all ranks must compute the same norm: that
of the gradient which one process would have. A rank can't compute it from what it holds. Shards lie
on one rank each, so their squares are summed over the ranks. A replicated gradient lies on every
rank; summed in the same way, it would count N times. So the caller says which tensors are which.

A weight that is used twice, such as a tied embedding, is one parameter with one gradient.

Sources: Pascanu et al. 2013 for clipping; `torch.nn.utils.clip_grad_norm_`; Megatron-LM's
`get_grad_norm_fp32`. Chapter: acceleration/parallelism.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.common.arguments import require_number

EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_


def global_norm(
    sharded: Iterable[Tensor], group: Group, replicated: Iterable[Tensor] = ()
) -> Tensor:
    """The Euclidean norm of a gradient whose parts are on several ranks: (), fp64.

    sharded: this rank's parts; no number is on two ranks. replicated: tensors that are the same on
    all ranks; each counts once. Every rank gets the same bits. A rank may hold nothing.

    >>> from course_pkg.acceleration.parallel.launch import launch
    >>> def norm(group):
    ...     shard = torch.tensor([[2.0], [4.0]][group.rank])
    ...     return global_norm([shard], group, replicated=[torch.tensor([4.0])]).item()
    >>> launch(norm, 2)  # √(2² + 4² + 4²)
    [6.0, 6.0]
    """
    sharded = list(sharded)
    replicated = list(replicated)
    device = next((tensor.device for tensor in sharded + replicated), torch.device("cpu"))
    total = group.all_reduce(_squares(sharded, device)[None])[0]
    return (total + _squares(replicated, device)).sqrt()


@torch.no_grad()
def clip_by_norm(gradients: Iterable[Tensor], norm: Tensor | float, max_norm: float) -> None:
    """Scale gradients in place so that their norm, which is given, becomes at most `max_norm`.

    norm: of the whole gradient, as `global_norm` returns it. If it is NaN, all gradients become
    NaN, as torch's do: also those of a rank that has none. Raises ValueError unless max_norm > 0.

    >>> gradient = torch.tensor([3.0, 4.0])
    >>> clip_by_norm([gradient], norm=5.0, max_norm=1.0)
    >>> gradient
    tensor([0.6000, 0.8000])
    """
    if not require_number(max_norm, "max_norm") > 0:
        raise ValueError(f"max_norm must be above 0, got {max_norm}")
    scale = max_norm / (float(norm) + EPSILON)
    if scale >= 1:  # false for NaN
        return
    for gradient in gradients:
        gradient.mul_(scale)


def _squares(tensors: list[Tensor], device: torch.device) -> Tensor:
    """The sum of the squares: (), fp64."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for tensor in tensors:
        total += tensor.detach().double().square().sum()
    return total
