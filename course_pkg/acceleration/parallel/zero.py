"""ZeRO: AdamW whose state is divided among the ranks of data parallelism, in three stages.

In data parallelism every rank holds the same 16 bytes for each parameter: bf16 weight and gradient
(2 + 2), and AdamW's fp32 weight and two moments (4 + 4 + 4). With ZeRO, between the backward pass
and the step::

    stage 1   optimizer state is sharded     4 + 12/N
    stage 2   and gradients                  2 + 14/N
    stage 3   and weights                    16/N

An all-reduce is a reduce-scatter and an all-gather. Stages 1 and 2 take AdamW's step between the
two, so they send what data parallelism sends. Stage 3 gathers a unit's weights before its forward
pass and again before its backward pass, and frees them after each: half as much again.

Sources: ZeRO (Rajbhandari et al. 2020), sections 5 and 7; PyTorch FSDP (Zhao et al. 2023).
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.acceleration.parallel.collectives import Group, clip_by_norm, global_norm
from course_pkg.acceleration.parallel.sharded_units import (
    FlatParameter,
    ShardedUnit,
    call_after_backward,
    call_around_passes,
    make_units,
)
from course_pkg.common.arguments import require_integer


class ZeroAdamW:
    """AdamW over the shards of one model that N ranks train together.

    Each step, with losses that are divided by the targets of all ranks (see `data_parallel`)::

        with zero.no_sync():              # only if a step has several microbatches
            loss(first).backward()
        loss(last).backward()
        zero.synchronize()                # now each rank has its shard of the summed gradient
        norm = zero.clip_grad_norm_(1.0)
        zero.step()
        zero.zero_grad()

    Every rank must run the same units forward and backward, also a rank whose rows have no target.
    The model's parameters become views of flat tensors: don't move or cast it afterwards.

    Args:
        model: the same on all ranks, whole, in bf16 or fp32.
        adamw: settings of torch.optim.AdamW; `optimizer` is torch's, for a schedule of its lr.
    """

    def __init__(
        self,
        model: nn.Module,
        group: Group,
        stage: int,
        **adamw: Any,
    ):
        if require_integer(stage, "stage") > 3:
            raise ValueError(f"stage must be 1, 2 or 3, got {stage}")
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError("no parameter requires a gradient; there is nothing to train")
        self.model = model
        self.group = group
        self.stage = stage
        self.units = make_units(model, group)
        for buffer in model.buffers():
            group.broadcast(buffer)
        self.peak_gathered_bytes = 0
        self._backward_order = [*self.units[-2::-1], self.units[-1]]
        self._reduced = 0  # how many units of that order
        self._synchronizing = True
        for unit in self.units:
            if stage >= 2:
                call_after_backward(unit, self._backward_is_done)
            if stage == 3:
                call_around_passes(unit, before=self._gather, after=self._free)
                for flat in unit.flats:
                    flat.keep_only_shard()
        self.masters = {flat: flat.shard.float() for flat in self._trained()}  # no copy of fp32
        self.optimizer = torch.optim.AdamW(list(self.masters.values()), **adamw)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in this context add to whole gradients, which are kept on this rank."""
        before = self._synchronizing
        self._synchronizing = False
        try:
            yield
        finally:
            self._synchronizing = before

    def synchronize(self) -> None:
        """End a backward pass: reduce the gradients that are left, free gathered weights.

        At stages 2 and 3 it may follow every microbatch's backward pass, and the shards add up.
        Stage 1 keeps whole gradients, so call it once in a step.
        """
        if self.stage == 1 and any(flat.gradient is not None for flat in self._trained()):
            raise RuntimeError(
                "stage 1 synchronizes once in a step; put all backward passes but the last into "
                "no_sync(), and call zero_grad() after step()"
            )
        if self.stage < 3 and not all(flat.is_attached() for flat in self.flats()):
            raise RuntimeError(
                "the model was moved or cast after ZeroAdamW had taken it, so its parameters are "
                "no longer those that are trained; do that before"
            )
        for unit in self._backward_order:
            self._free(unit)
            unit.backward_done = True
        self._reduce_units()
        self._reduced = 0
        for unit in self.units:
            unit.backward_done = False

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale the gradient so that its norm is at most `max_norm`; return the norm before."""
        shards = [self._gradient_shard(flat) for flat in self._trained()]
        norm = global_norm(shards, self.group)
        clip_by_norm(shards, norm, max_norm)
        return norm.item()

    @torch.no_grad()
    def step(self) -> None:
        """Take AdamW's step on this rank's shards; at stages 1 and 2, share the new weights."""
        for flat, master in self.masters.items():
            master.grad = self._gradient_shard(flat).float()
        self.optimizer.step()
        for flat, master in self.masters.items():
            master.grad = None
            if master.data_ptr() != flat.shard.data_ptr():
                flat.shard.copy_(master)  # rounded to the model's dtype
            if self.stage < 3:
                flat.share_shards()

    def zero_grad(self) -> None:
        """Free all gradients."""
        for flat in self._trained():
            flat.gradient = None
            for parameter in flat.parameters.values():
                parameter.grad = None

    def full_state_dict(self) -> dict[str, Tensor]:
        """The model's whole state dict, as copies on every rank; a collective."""
        weights = self._gathered({flat: flat.shard for flat in self.flats()})
        # Tied weights have several names in a state dict, and one in named_parameters.
        first_names = {parameter: name for name, parameter in self.model.named_parameters()}
        return {
            name: weights[first_names[value]] if value in first_names else value.clone()
            for name, value in self.model.state_dict(keep_vars=True).items()
        }

    def full_gradients(self) -> dict[str, Tensor]:
        """The whole gradient of each trained parameter on every rank; a collective."""
        return self._gathered({flat: self._gradient_shard(flat) for flat in self._trained()})

    def flats(self) -> list[FlatParameter]:
        """All flat parameters, unit by unit."""
        return [flat for unit in self.units for flat in unit.flats]

    def _trained(self) -> list[FlatParameter]:
        return [flat for flat in self.flats() if flat.trained]

    def _gradient_shard(self, flat: FlatParameter) -> Tensor:
        if flat.gradient is None or self._reduced:
            raise RuntimeError("no summed gradient; call synchronize() after the backward pass")
        return flat.gradient_shard

    def _gathered(self, shards: dict[FlatParameter, Tensor]) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for flat, shard in shards.items():
            views = flat.views(self.group.all_gather(shard))
            for name, view in zip(flat.shapes, views, strict=True):
                tensors[name] = view.clone()
        return tensors

    def _gather(self, unit: ShardedUnit) -> None:
        for flat in unit.flats:
            flat.gather()
        gathered = sum(flat.flat.untyped_storage().nbytes() for flat in self.flats())
        self.peak_gathered_bytes = max(self.peak_gathered_bytes, gathered)

    def _free(self, unit: ShardedUnit) -> None:
        if self.stage == 3:
            for flat in unit.flats:
                flat.free()

    def _backward_is_done(self, unit: ShardedUnit) -> None:
        self._free(unit)
        if not self._synchronizing:
            return
        if unit.backward_done:
            raise RuntimeError(
                "a unit ran backward twice before synchronize(); put all backward passes of a step "
                "but the last into no_sync(), or call synchronize() after each"
            )
        unit.backward_done = True
        self._reduce_units()

    def _reduce_units(self) -> None:
        """Reduce the gradients of units that are done, always in the same order."""
        while self._reduced < len(self.units) and self._backward_order[self._reduced].backward_done:
            for flat in self._backward_order[self._reduced].flats:
                if flat.trained:
                    flat.reduce_gradients(whole=self.stage == 1)
            self._reduced += 1
