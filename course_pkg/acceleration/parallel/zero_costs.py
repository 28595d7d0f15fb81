"""What ZeRO's stages hold and send: by the formulas, and measured.

The formulas are for bf16 weights and gradients with fp32 AdamW, in bytes for each parameter. The
measurement adds up the storages of a rank's tensors, with padding and frozen weights.
Source: ZeRO (Rajbhandari et al. 2020), figure 1 and section 7.
"""

import dataclasses

from torch import Tensor

from course_pkg.acceleration.parallel.zero import ZeroAdamW
from course_pkg.common.arguments import require_integer

MODEL = 2  # bytes of a bf16 weight, and of its gradient
MASTER = 4  # bytes of an fp32 weight
MOMENTS = 8  # bytes of AdamW's two moments


@dataclasses.dataclass(frozen=True)
class HeldBytes:
    """What a rank's tensors hold, in bytes."""

    weights: int  # in the model's dtype
    gradients: int  # in the model's dtype
    master: int  # fp32 weights; 0 if the model's are fp32
    moments: int  # AdamW's two
    padding: int  # the part of these four that belongs to no parameter

    @property
    def total(self) -> int:
        """All of them, padding included."""
        return self.weights + self.gradients + self.master + self.moments


def held_bytes(zero: ZeroAdamW) -> HeldBytes:
    """What this rank's tensors hold now, by their storages.

    Between `synchronize` and `zero_grad`, from the second step on (AdamW makes its moments in the
    first one), it holds everything that the formulas count.
    """
    weights: list[Tensor] = []
    gradients: list[Tensor] = []
    masters: list[Tensor] = []
    moments: list[Tensor] = []
    padding = 0
    for flat in zero.flats():
        held = [flat.flat if zero.stage < 3 else flat.shard]
        weights += [flat.flat, flat.shard]
        if flat.gradient is not None:
            held.append(flat.gradient)
            gradients.append(flat.gradient)
        if flat.trained:
            master = zero.masters[flat]
            if master.data_ptr() != flat.shard.data_ptr():
                held.append(master)
                masters.append(master)
            state = zero.optimizer.state.get(master, {})
            both = [state[name] for name in ("exp_avg", "exp_avg_sq") if state]
            held += both
            moments += both
        for tensor in held:
            sharded = len(tensor) == flat.shard_size
            padding += tensor.itemsize * (flat.shard_padding if sharded else flat.padding)
    gradients += [p.grad for p in zero.model.parameters() if p.grad is not None]
    weights += [p.data for p in zero.model.parameters()]
    return HeldBytes(
        weights=_storage_bytes(weights),
        gradients=_storage_bytes(gradients),
        master=_storage_bytes(masters),
        moments=_storage_bytes(moments),
        padding=padding,
    )


def bytes_per_parameter(stage: int, ranks: int) -> float:
    """What a rank holds for each parameter; stage 0 is data parallelism without ZeRO."""
    _check(stage, ranks)
    sharded_from = {"master": 1, "moments": 1, "gradients": 2, "weights": 3}
    sizes = {"master": MASTER, "moments": MOMENTS, "gradients": MODEL, "weights": MODEL}
    return sum(
        size / ranks if stage >= sharded_from[kind] else float(size) for kind, size in sizes.items()
    )


def sent_bytes_per_parameter(stage: int, ranks: int) -> float:
    """What a rank sends in a step with one backward pass, for each parameter.

    A reduce-scatter of gradients and an all-gather of weights, (N − 1)/N of them each; at stage 3 a
    second all-gather. Stage 0's all-reduce is one of each, too.

    Example:

        >>> [sent_bytes_per_parameter(stage, ranks=4) for stage in (0, 1, 2, 3)]
        [3.0, 3.0, 3.0, 4.5]
    """
    _check(stage, ranks)
    passes = 3 if stage == 3 else 2
    return passes * (ranks - 1) / ranks * MODEL


def _check(stage: int, ranks: int) -> None:
    if require_integer(stage, "stage", 0) > 3:
        raise ValueError(f"stage must be at most 3, got {stage}")
    require_integer(ranks, "ranks")


def _storage_bytes(tensors: list[Tensor]) -> int:
    """A storage that several tensors share counts once."""
    sizes = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())
