"""What one forward and backward pass of a model keeps in memory, and how long it takes.

Bytes are counted tensor by tensor, so they are exact and repeatable on a CPU too, unlike the size
of the process. Use it to compare methods, or to see what gradient checkpointing saves and costs:

    model.train().activation_checkpointing_enable()  # transformers' name for it

keeps only the input of each block and computes the rest again in the backward pass.
Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", section 4.
Chapter: adapters/qlora.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_pkg.adapters.targets import require_model


@dataclass(frozen=True)
class StepCost:
    """Bytes and seconds of one forward and backward pass.

    weights: parameters and buffers, shared ones counted once. saved: what autograd keeps from the
    forward pass for the backward pass, without the weights. gradients: those of the parameters.
    """

    loss: float
    weights: int
    saved: int
    gradients: int
    seconds: float


def measure_step(model: nn.Module, batch: Mapping[str, Tensor]) -> StepCost:
    """Run model(**batch).loss forward and backward once, and count; the gradients are discarded.

    While the blocks of a checkpointed model are computed again, each adds to the peak what an
    ordinary pass saves for it; `saved` does not include that.
    Raises ValueError if no parameter requires a gradient or if there is no loss.

    >>> from course_pkg.lm.load import load
    >>> model, ids = load("tiny").model, torch.arange(8)[None]
    >>> cost = measure_step(model, {"input_ids": ids, "labels": ids})
    >>> cost.gradients == 4 * 90624 and cost.saved > 0
    True
    """
    trainable = [p for p in require_model(model).parameters() if p.requires_grad]
    if not trainable:
        raise ValueError("no parameter requires a gradient; inject an adapter or unfreeze some")
    own = _storages([*model.parameters(), *model.buffers()])
    kept: list[Tensor] = []
    before = [p.grad for p in trainable]
    try:
        for parameter in trainable:
            parameter.grad = None
        started = time.perf_counter()
        with torch.autograd.graph.saved_tensors_hooks(_keep(kept), lambda tensor: tensor):
            loss = getattr(model(**batch, use_cache=False), "loss", None)
        if loss is None:
            raise ValueError('the model returned no loss; the batch needs "labels"')
        saved = sum(size for key, size in _storages(kept).items() if key not in own)
        kept.clear()
        loss.backward()
        seconds = time.perf_counter() - started
        gradients = sum(p.grad.nbytes for p in trainable if p.grad is not None)
    finally:
        for parameter, gradient in zip(trainable, before, strict=True):
            parameter.grad = gradient
    return StepCost(loss.item(), sum(own.values()), saved, gradients, seconds)


def _keep(kept: list[Tensor]):
    def hook(tensor: Tensor) -> Tensor:
        kept.append(tensor)  # also keeps its memory from being used again during the count
        return tensor

    return hook


def _storages(tensors: list[Tensor]) -> dict[int, int]:
    """The bytes of each storage by its address; views of one storage count once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}
