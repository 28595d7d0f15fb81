"""Pipeline parallelism: each rank has some layers, and the ranks pass activations and gradients on.

The loss is divided once, by the number of targets of all microbatches: a mean per microbatch is
wrong if their numbers differ. With tied embeddings, first and last rank each have the weight and a
part of its gradient: both need the sum, and the norm counts it once. A training step of a rank::

    step = pipeline.run(microbatches, divisor)   # gradients of this rank's layers
    pipeline.sum_tied_gradients()
    norm = pipeline.clip_gradients(1.0)
    optimizer.step()

With data parallelism, sum the gradients over the replicas before the norm.
Sources: GPipe (Huang et al. 2019), Megatron-LM (Narayanan et al. 2021).
"""

import datetime
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_pkg.acceleration.parallel.collectives import Group, clip_by_norm, global_norm
from course_pkg.acceleration.parallel.pipeline_stage import Stage
from course_pkg.acceleration.parallel.schedules import (
    Action,
    Receive,
    Schedule,
    Send,
    Value,
    check,
    program,
)
from course_pkg.acceleration.parallel.timeline import Event
from course_pkg.common.arguments import require_between

Microbatch = tuple[Tensor, Tensor]  # ids and labels, (rows, tokens) each
Loss = Callable[[Tensor, Tensor], Tensor]
LATER = 1.0  # seconds: a rank whose neighbor has gone lets that one report its error first


class PipelineError(RuntimeError):
    """A message between two stages did not arrive."""


@dataclass
class Messages:
    """This rank's messages of one pass."""

    group: Group
    microbatches: Sequence[Microbatch]
    activation: Callable[[Tensor], Tensor]
    timeout: float
    values: dict[Value, Tensor] = field(default_factory=dict)  # computed here, or being received
    receiving: dict[Value, tuple[dist.Work, int]] = field(default_factory=dict)
    sending: list[tuple[dist.Work, Send, Tensor]] = field(default_factory=list)

    def send(self, step: Send) -> None:
        """Begin to send a value that was put into `values`."""
        tensor = self.values.pop(step.value).contiguous()
        expected = self.activation(self.microbatches[step.value.microbatch][0])
        if (tensor.shape, tensor.dtype) != (expected.shape, expected.dtype):
            raise ValueError(
                f"the {_text(step.value)} has shape {tuple(tensor.shape)} and {tensor.dtype}, but "
                f"the next one expects {tuple(expected.shape)} and {expected.dtype}: `activation` "
                "says what stages send"
            )
        self.group.sent_bytes += tensor.nbytes
        self.group.messages += 1
        group = self.group.process_group
        work = dist.isend(tensor, group=group, group_dst=step.to, tag=self._tag(step.value))
        self.sending.append((work, step, tensor))  # the tensor must stay until it is sent

    def receive(self, step: Receive) -> None:
        """Begin to receive a value."""
        into = self.activation(self.microbatches[step.value.microbatch][0])
        group = self.group.process_group
        work = dist.irecv(into, group=group, group_src=step.source, tag=self._tag(step.value))
        self.values[step.value] = into
        self.receiving[step.value] = (work, step.source)

    def take(self, value: Value) -> Tensor:
        """A value, as soon as it is there."""
        if value in self.receiving:
            work, source = self.receiving.pop(value)
            self._wait(work, f"for the {_text(value)}, which rank {source} sends")
        return self.values.pop(value)

    def finish(self) -> None:
        """Wait until all that was sent has gone."""
        for work, (value, to), _ in self.sending:
            self._wait(work, f"until rank {to} received the {_text(value)}")
        self.sending.clear()

    def _wait(self, work: dist.Work, what: str) -> None:
        began = time.monotonic()
        try:
            work.wait(datetime.timedelta(seconds=self.timeout))
        except RuntimeError as error:
            if time.monotonic() - began < self.timeout:  # the neighbor has gone
                time.sleep(LATER)
            cause = re.sub(r"^\[\S+\] ", "", str(error).splitlines()[0])  # without gloo's file
            raise PipelineError(
                f"rank {self.group.rank} waited {what}, at most {self.timeout:g} s: {cause}"
            ) from error

    def _tag(self, value: Value) -> int:
        """A number of its own for each message, so that none is taken for another."""
        kind = 0 if value.kind == "activation" else 1
        return (value.stage * len(self.microbatches) + value.microbatch) * 2 + kind


@dataclass
class PipelineRun:
    """One pass of this rank."""

    stages: Sequence[Stage]
    schedule: Schedule
    messages: Messages
    loss: Loss
    losses: list[float] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    in_flight: int = 0
    in_flight_bytes: int = 0

    def all_steps(self) -> None:
        """Do this rank's steps."""
        for step in program(self.schedule)[self.messages.group.rank]:
            if isinstance(step, Send):
                self.messages.send(step)
            elif isinstance(step, Receive):
                self.messages.receive(step)
            else:
                self._act(step)
        self.messages.finish()

    def _act(self, action: Action) -> None:
        kind, i, chunk = action
        number = chunk * self.schedule.ranks + self.messages.group.rank  # of the stage
        last = number == self.schedule.stages - 1
        values = self.messages.values
        if kind == "F":
            ids, labels = self.messages.microbatches[i]
            x = self.messages.take(Value("activation", number - 1, i)) if number else ids
            loss = (lambda y: self.loss(y, labels)) if last else None
            y = self._timed(action, self.stages[chunk].forward, i, x, loss)
            if last:
                self.losses.append(y.item())
            else:
                values[Value("activation", number, i)] = y
        elif kind == "W":
            self._timed(action, self.stages[chunk].backward_weight, i)
        else:
            gradient = None if last else self.messages.take(Value("gradient", number + 1, i))
            stage = self.stages[chunk]
            backward = stage.backward if kind == "B" else stage.backward_input
            gradient = self._timed(action, backward, i, gradient)
            if number:
                values[Value("gradient", number, i)] = gradient
        self.in_flight = max(self.in_flight, sum(stage.in_flight for stage in self.stages))
        held = sum(stage.in_flight_bytes for stage in self.stages)
        self.in_flight_bytes = max(self.in_flight_bytes, held)

    def _timed(self, action: Action, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.monotonic()
        result = function(*arguments)
        self.events.append(Event(self.messages.group.rank, action, start, time.monotonic()))
        return result


def _text(value: Value) -> str:
    return f"{value.kind} of microbatch {value.microbatch} from stage {value.stage}"


@dataclass(frozen=True)
class StepResult:
    """What `Pipeline.run` found on this rank."""

    loss: float  # of all microbatches, on every rank
    events: tuple[Event, ...]  # when this rank did what, by time.monotonic
    in_flight: int  # the most microbatches held at once, per chunk
    in_flight_bytes: int  # the most that autograd held for them


def split_batch(ids: Tensor, labels: Tensor, count: int) -> list[Microbatch]:
    """A batch, (rows, tokens), as microbatches; the first ones have a row more if needed."""
    if not 1 <= count <= len(ids):
        raise ValueError(f"{len(ids)} rows can't be split into {count} microbatches: use fewer")
    return list(zip(ids.tensor_split(count), labels.tensor_split(count), strict=True))


class Pipeline:
    """This rank's stages, run in the order of a schedule.

    A parameter that has one name on two ranks is tied: the second rank gets the first one's value.

    Args:
        modules: one `nn.Module` (or `Stage`) per chunk; chunk c of rank r is stage c·p + r, so with
            `split_decoder` they are `parts[rank::p]`.
        loss: from the last stage's output and the labels to the sum over the targets.
        activation: from a microbatch's ids to an empty tensor as a stage sends it; None means the
            modules' own, which `DecoderStage` has.
        timeout: seconds to wait for one message.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module | Stage],
        schedule: Schedule,
        group: Group,
        loss: Loss,
        *,
        activation: Callable[[Tensor], Tensor] | None = None,
        timeout: float = 60.0,
    ):
        check(schedule)
        if (schedule.ranks, schedule.chunks) != (group.size, len(modules)):
            raise ValueError(
                f"the schedule is for {schedule.ranks} ranks with {schedule.chunks} stages each, "
                f"but there are {group.size} ranks and {len(modules)} modules on this one"
            )
        require_between(timeout, "timeout", 0, math.inf)
        split = any(action.kind == "W" for action in schedule.actions[group.rank])
        self.stages = [m if isinstance(m, Stage) else Stage(m, split) for m in modules]
        self.schedule = schedule
        self.group = group
        self.loss = loss
        self.activation = activation or self.stages[0].module.activation
        self.timeout = timeout
        self.messages = Messages
        named = [stage.module.named_parameters() for stage in self.stages]
        self.parameters = {name: p for parameters in named for name, p in parameters}
        self.tied = self._find_tied()
        self._copy_tied()

    def run(self, microbatches: Sequence[Microbatch], divisor: float) -> StepResult:
        """Add the gradients of sum(losses) / divisor to this rank's parameters.

        Args:
            microbatches: the same on all ranks of the pipeline; they may have different shapes.
            divisor: the number of targets of the batch, over all replicas.
        """
        require_between(divisor, "divisor", 0, math.inf)
        expected = self.schedule.microbatches
        if len(microbatches) != expected:
            raise ValueError(
                f"the schedule is for {expected} microbatches, got {len(microbatches)}"
            )
        messages = self.messages(self.group, microbatches, self.activation, self.timeout)
        run = PipelineRun(
            self.stages, self.schedule, messages, lambda y, z: self.loss(y, z) / divisor
        )
        run.all_steps()
        device = microbatches[0][0].device
        loss = torch.tensor(sum(run.losses), dtype=torch.float64, device=device)
        self.group.broadcast(loss, source=self.group.size - 1)
        return StepResult(loss.item(), tuple(run.events), run.in_flight, run.in_flight_bytes)

    @torch.no_grad()
    def sum_tied_gradients(self) -> None:
        """Give both holders of a tied weight the sum of their gradients; once per step."""
        for name, (first, second) in self.tied.items():
            parameter = self.parameters.get(name)
            if self.group.rank in (first, second) and parameter.requires_grad:
                other = second if self.group.rank == first else first
                gradient = parameter.grad
                gradient += self.group.exchange(
                    gradient, torch.empty_like(gradient), to=other, source=other
                )

    def counted_parameters(self) -> list[nn.Parameter]:
        """This rank's parameters, without those that an earlier rank has too."""
        return [
            parameter
            for name, parameter in self.parameters.items()
            if name not in self.tied or self.tied[name][0] == self.group.rank
        ]

    def gradient_norm(self) -> float:
        """The norm of the whole model's gradient, on every rank."""
        divided = [n for s in self.stages for n, m in s.module.named_modules() if _is_divided(m)]
        if divided:
            raise ValueError(
                f"{divided[0]} is divided among several ranks: sum the squares of `counted_"
                "parameters()` over its group too (collectives.global_norm)"
            )
        gradients = [p.grad for p in self.counted_parameters() if p.grad is not None]
        return global_norm(gradients, self.group).item()

    def clip_gradients(self, max_norm: float) -> float:
        """Scale this rank's gradients if the whole norm is above `max_norm`; return that norm."""
        norm = self.gradient_norm()
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        clip_by_norm(gradients, norm, max_norm)
        return norm

    def gather(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """On every rank, what all ranks have by their parameters' names; a tied one comes once."""
        whole: dict[str, Any] = {}
        for part in gather_objects(dict(named), self.group):
            for name, item in part.items():
                whole.setdefault(name, item)  # of a tied one, the first rank's
        return whole

    def state_dict(self) -> dict[str, Tensor]:
        """The whole model's parameters, on every rank; independent of the number of stages."""
        return self.gather({name: p.detach().clone() for name, p in self.parameters.items()})

    def _find_tied(self) -> dict[str, tuple[int, int]]:
        holders: dict[str, list[int]] = {}
        for rank, names in enumerate(gather_objects(list(self.parameters), self.group)):
            for name in names:
                holders.setdefault(name, []).append(rank)
        many = [name for name, ranks in holders.items() if len(ranks) > 2]
        if many:
            raise ValueError(f"{', '.join(many)}: on more than two ranks; give them other names")
        return {name: (ranks[0], ranks[1]) for name, ranks in holders.items() if len(ranks) == 2}

    @torch.no_grad()
    def _copy_tied(self) -> None:
        for name, (first, second) in self.tied.items():
            if self.group.rank == first:
                self.group.send(self.parameters[name].detach(), second)
            elif self.group.rank == second:
                self.group.receive(self.parameters[name].detach(), first)


def _is_divided(module: nn.Module) -> bool:
    group = getattr(module, "group", None)
    return isinstance(group, Group) and group.size > 1


def gather_objects(item: Any, group: Group) -> list[Any]:
    """An object of each rank, by rank; on every rank."""
    items = [None] * group.size
    dist.all_gather_object(items, item, group=group.process_group)
    return items
