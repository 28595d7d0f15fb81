"""Gradients under tensor parallelism: what must be summed, and a norm that counts nothing twice.

After the backward pass, most gradients are right: the collectives inside saw to it. Two kinds are
partial sums. A key-value head of which several ranks have a copy got, on each, the gradient of that
rank's query heads. With sequence parallelism, what every rank has whole (norms, the biases of the
row-parallel layers) got, on each, the gradient of that rank's tokens. `finish_gradients` sums both,
once per step.

The norm of the gradient is that of the whole decoder: the squares of all parts are summed over the
ranks, and what several ranks have counts on the first of them alone.

Sources: Megatron's finalize_model_grads and clip_grads; Korthikanti et al. 2022.
Chapter: acceleration/model-parallelism.
"""

import torch
from torch import Tensor, nn

from course_pkg.acceleration.parallel.gradient_norm import clip_by_norm, global_norm
from course_pkg.acceleration.parallel.parallel_decoder import TensorParallelDecoder
from course_pkg.acceleration.parallel.tensor_shards import placement


@torch.no_grad()
def finish_gradients(decoder: TensorParallelDecoder) -> None:
    """Sum the gradients that are partial sums, in place.

    Call it once per step on every rank: after the last backward pass of the step, before
    `clip_gradients` and the optimizer. A second call would sum again. One message for each kind.
    """
    group = decoder.group
    whole = []
    copied = []
    for name, parameter in decoder.named_parameters():
        if parameter.grad is None:
            continue
        place = placement(name, decoder.whole_config, group.size)
        if place.dim is not None and place.replicas > 1:
            copied.append(parameter.grad)
            replicas = place.replicas
        elif place.dim is None and decoder.sequence_parallel:
            whole.append(parameter.grad)
    if whole:
        _unflatten(group.all_reduce(_flatten(whole)), whole)
    if copied:
        # All ranks with a copy sum in the same order, so their copies stay equal to the last bit.
        every = group.all_gather(_flatten(copied)[None])  # (ranks, numbers)
        first = group.rank // replicas * replicas
        _unflatten(every[first : first + replicas].sum(0), copied)


@torch.no_grad()
def gradient_norm(decoder: TensorParallelDecoder) -> float:
    """The Euclidean norm of the whole decoder's gradient, the same on every rank.

    Tied embeddings are one parameter, so they count once; so do copies.
    """
    group = decoder.group
    counted = []
    for name, parameter in decoder.named_parameters():
        place = placement(name, decoder.whole_config, group.size)
        if parameter.grad is not None and group.rank % place.replicas == 0:
            counted.append(parameter.grad)
    return global_norm(counted, group).item()


def clip_gradients(decoder: TensorParallelDecoder, max_norm: float) -> float:
    """Scale the gradients so that their norm is at most `max_norm`; return the norm before.

    As torch's clip_grad_norm_ does for one process. Raises ValueError unless max_norm is positive.
    """
    norm = gradient_norm(decoder)
    gradients = [p.grad for p in decoder.parameters() if p.grad is not None]
    clip_by_norm(gradients, norm, max_norm)
    return norm


def _flatten(tensors: list[Tensor]) -> Tensor:
    return nn.utils.parameters_to_vector(tensors)


def _unflatten(vector: Tensor, into: list[Tensor]) -> None:
    parts = vector.split([tensor.numel() for tensor in into])
    for tensor, part in zip(into, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
