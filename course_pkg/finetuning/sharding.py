"""FSDP2: a model of which each rank holds only a part, so that it need not fit on one GPU.

torch's `fully_shard` cuts each weight into N parts by rows. Before a layer computes, the ranks
gather its whole weights; afterwards they keep their own part. Gradients are added up and cut in the
same way, so AdamW's state is in parts too. A weight in parts is a DTensor.

Checkpoints hold whole tensors, so they don't depend on how many ranks wrote them.

Source: Zhao et al. 2023, "PyTorch FSDP". Chapter: finetuning/sft.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def layers(model: nn.Module) -> Iterator[nn.Module]:
    """The modules of a model's outermost lists: a decoder's layers, one after the other.

    >>> from course_pkg.lm.load import load
    >>> [type(layer).__name__ for layer in layers(load("tiny").model)]
    ['LlamaDecoderLayer', 'LlamaDecoderLayer']
    """
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from layers(child)


def shard(model: nn.Module, device: torch.device | str) -> nn.Module:
    """A copy of a model in which each rank has its part of each weight, on its device.

    The model itself stays whole where it is: leave it on the CPU if it doesn't fit on one GPU.
    Gradients are sums over the ranks, not means. Needs a process group.
    """
    mesh = init_device_mesh(torch.device(device).type, (dist.get_world_size(),))
    sharded = copy.deepcopy(model)
    for module in [*layers(sharded), sharded]:
        fully_shard(module, mesh=mesh)
    for module in sharded.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo can't scale while it sums
    return sharded


def whole(value: Any, keep: bool = True) -> Any:
    """Gather what is in parts, also in a dict of dicts; every rank must call it.

    keep: False returns None for each of them, for a rank that only helps the others.
    """
    if isinstance(value, dict):
        return {name: whole(each, keep) for name, each in value.items()}
    if not isinstance(value, DTensor):
        return value
    gathered = value.full_tensor()
    return gathered.cpu() if keep else None


def part_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part of a whole tensor, if a parameter of its shape is in parts."""
    if not isinstance(parameter, DTensor) or tensor.shape != parameter.shape:
        return tensor
    tensor = tensor.to(parameter.device)
    mesh = parameter.device_mesh
    return distribute_tensor(tensor, mesh, parameter.placements, src_data_rank=None)
