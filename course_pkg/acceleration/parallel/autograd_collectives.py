"""Collectives that gradients pass through: each one's backward is another collective.

Forward, backward, and Megatron's name::

    forward                         backward                        Megatron's name
    copy_to_group: nothing          all-reduce                      f
    reduce_from_group: all-reduce   nothing                         g
    gather_from_group: all-gather   own part                        gather_from_…_region
    all_gather: all-gather          reduce-scatter                  gather_from_sequence_…
    reduce_scatter: reduce-scatter  all-gather                      reduce_scatter_to_sequence_…

f and g surround what is computed in parts: each rank's part contributes to the gradient of the
common input, and has a part of the sum. torch's differentiable all-reduce sums in both directions.

Sources: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, "Reducing
Activation Recomputation", section 4.2.2.
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


def gather_from_group(x: Tensor, group: Group) -> Tensor:
    """All ranks' x side by side (last dimension), which each rank then uses in the same way."""
    return _Gather.apply(x, group, -1)


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


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group = group
        ctx.dim = dim
        return _gathered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        own = gradient.chunk(ctx.group.size, ctx.dim)[ctx.group.rank]
        return own.clone(), None, None


class _AllGather(_Gather):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _summed_part(gradient, ctx.group, ctx.dim), None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group = group
        ctx.dim = dim
        return _summed_part(x, group, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _gathered(gradient, ctx.group, ctx.dim), None, None


def _gathered(x: Tensor, group: Group, dim: int) -> Tensor:
    # contiguous: several linear layers that read the result would each make their own copy
    return group.all_gather(x.movedim(dim, 0)).movedim(0, dim).contiguous()


def _summed_part(x: Tensor, group: Group, dim: int) -> Tensor:
    if x.shape[dim] % group.size:
        raise ValueError(
            f"dimension {dim} of a tensor of shape {tuple(x.shape)} can't be divided among "
            f"{group.size} ranks: pad it to a multiple of {group.size}"
        )
    return group.reduce_scatter(x.movedim(dim, 0)).movedim(0, dim)
