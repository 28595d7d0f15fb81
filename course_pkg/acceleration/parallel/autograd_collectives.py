"""Collectives that gradients pass through: each one's backward is another collective.

    forward                         backward                        Megatron's name
    copy_to_group: nothing          all-reduce                      f
    reduce_from_group: all-reduce   nothing                         g
    gather_from_group: all-gather   own part                        gather_from_…_region
    all_gather: all-gather          reduce-scatter                  gather_from_sequence_…
    reduce_scatter: reduce-scatter  all-gather                      reduce_scatter_to_sequence_…

f and g surround what is computed in parts: each rank's part contributes to the gradient of the
common input, and has a part of the sum. torch's differentiable all-reduce sums in both directions.

Sources: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, "Reducing
Activation Recomputation", section 4.2.2. Chapter: acceleration/model-parallelism.
"""

from typing import Any

import torch
from torch import Tensor

from course_pkg.acceleration.parallel.collectives import Group


def copy_to_group(x: Tensor, group: Group) -> Tensor:
    """x itself, which all ranks have and each uses in its own way; the gradients are summed."""
    return _Copy.apply(x, group)


def reduce_from_group(x: Tensor, group: Group) -> Tensor:
    """The sum of all ranks' x, which each rank then uses in the same way."""
    return _Reduce.apply(x, group)


def scatter_to_group(x: Tensor, group: Group, dim: int = -1) -> Tensor:
    """This rank's part of x, which all ranks have: (…, size, …) to (…, size / N, …).

    Raises:
        ValueError: the ranks don't divide the dimension.
    """
    return _Scatter.apply(x, group, dim)


def gather_from_group(x: Tensor, group: Group, dim: int = -1) -> Tensor:
    """All ranks' x side by side in the last dimension, which each rank then uses in the same way."""
    return _Gather.apply(x, group, dim)


def all_gather(x: Tensor, group: Group, dim: int) -> Tensor:
    """All ranks' x side by side, which each rank uses in its own way: gradients are summed."""
    return _AllGather.apply(x, group, dim)


def reduce_scatter(x: Tensor, group: Group, dim: int) -> Tensor:
    """This rank's part of the sum of all ranks' x: (…, size, …) to (…, size / N, …)."""
    return _ReduceScatter.apply(x, group, dim)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.group.all_reduce(gradient.clone()), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return group.all_reduce(x.clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group = group
        ctx.dim = dim
        return _own_part(x, group, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _gathered(gradient, ctx.group, ctx.dim), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group = group
        ctx.dim = dim
        return _gathered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _own_part(gradient, ctx.group, ctx.dim), None, None


class _AllGather(_Gather):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _summed_part(gradient, ctx.group, ctx.dim), None, None


class _ReduceScatter(_Scatter):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group = group
        ctx.dim = dim
        return _summed_part(x, group, dim)


def _own_part(x: Tensor, group: Group, dim: int) -> Tensor:
    _check_divides(x, group, dim)
    return x.chunk(group.size, dim)[group.rank].clone()


def _gathered(x: Tensor, group: Group, dim: int) -> Tensor:
    # contiguous: several linear layers that read the result would each make their own copy
    return group.all_gather(x.movedim(dim, 0)).movedim(0, dim).contiguous()


def _summed_part(x: Tensor, group: Group, dim: int) -> Tensor:
    _check_divides(x, group, dim)
    return group.reduce_scatter(x.movedim(dim, 0)).movedim(0, dim)


def _check_divides(x: Tensor, group: Group, dim: int) -> None:
    if x.shape[dim] % group.size:
        raise ValueError(
            f"dimension {dim} of a tensor of shape {tuple(x.shape)} can't be divided among "
            f"{group.size} ranks: pad it to a multiple of {group.size}"
        )
