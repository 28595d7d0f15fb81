"""One pass of all microbatches through a rank's stages: its actions, and the messages between them.

A rank never waits for a send, and begins to receive before it needs the tensor. A wait has a limit:
a message that doesn't come is an error that names it, its sender, and who waited.

Not here: the order (`schedules`). Chapter: acceleration/model-parallelism.
"""

import datetime
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor

from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.acceleration.parallel.pipeline_stage import Stage
from course_pkg.acceleration.parallel.schedules import (
    Action,
    Receive,
    Schedule,
    Send,
    Value,
    program,
)
from course_pkg.acceleration.parallel.timeline import Event

Microbatch = tuple[Tensor, Tensor]  # ids and labels, (rows, tokens) each
Loss = Callable[[Tensor, Tensor], Tensor]
LATER = 1.0  # seconds: a rank whose neighbor has gone lets that one report its error first


class PipelineError(RuntimeError):
    """A message between two stages did not arrive."""


@dataclass
class Messages:
    """This rank's messages of one pass.

    activation: from a microbatch's ids to an empty tensor as a stage sends it. timeout: seconds.
    """

    group: Group
    microbatches: Sequence[Microbatch]
    activation: Callable[[Tensor], Tensor]
    timeout: float
    values: dict[Value, Tensor] = field(default_factory=dict)  # computed here, or being received
    receiving: dict[Value, tuple[dist.Work, int]] = field(default_factory=dict)
    sending: list[tuple[dist.Work, Send, Tensor]] = field(default_factory=list)

    def send(self, step: Send) -> None:
        """Begin to send a value that was put into `values`.

        Raises ValueError unless its shape and dtype are those of `activation`.
        """
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
        """A value, as soon as it is there. Raises PipelineError after `timeout` seconds."""
        if value in self.receiving:
            work, source = self.receiving.pop(value)
            self._wait(work, f"for the {_text(value)}, which rank {source} sends")
        return self.values.pop(value)

    def finish(self) -> None:
        """Wait until all that was sent has gone. Raises PipelineError after `timeout` seconds."""
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


class Run:
    """One pass of this rank.

    loss: from the last stage's output and the labels to a number; None runs forward passes alone.

    results: of the last stage, by microbatch: losses, or outputs. events: when each action began
    and ended, without the wait before it, by time.monotonic. in_flight, in_flight_bytes: the most
    microbatches that were held at once, counted per chunk, and the most bytes.
    """

    def __init__(
        self, stages: Sequence[Stage], schedule: Schedule, messages: Messages, loss: Loss | None
    ):
        if len(messages.microbatches) != schedule.microbatches:
            raise ValueError(
                f"the schedule is for {schedule.microbatches} microbatches, "
                f"got {len(messages.microbatches)}"
            )
        self.stages = stages
        self.schedule = schedule
        self.messages = messages
        self.loss = loss
        self.rank = messages.group.rank
        self.results: list[Any] = []
        self.events: list[Event] = []
        self.in_flight = 0
        self.in_flight_bytes = 0

    def all_steps(self) -> "Run":
        """Do this rank's steps; return this run."""
        for step in program(self.schedule)[self.rank]:
            if isinstance(step, Send):
                self.messages.send(step)
            elif isinstance(step, Receive):
                self.messages.receive(step)
            else:
                self._act(step)
        self.messages.finish()
        return self

    def _act(self, action: Action) -> None:
        kind, i, chunk = action
        number = chunk * self.schedule.ranks + self.rank  # of the stage
        last = number == self.schedule.stages - 1
        values = self.messages.values
        if kind == "F":
            ids = self.messages.microbatches[i][0]
            x = self.messages.take(Value("activation", number - 1, i)) if number else ids
            y = self._timed(action, self._forward, self.stages[chunk], i, x, last)
            if last:
                self.results.append(y.item() if self.loss else y)
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

    def _forward(self, stage: Stage, i: int, x: Tensor, last: bool) -> Tensor:
        if self.loss is None:
            return stage.module(x)
        if not last:
            return stage.forward(i, x)
        labels = self.messages.microbatches[i][1]
        return stage.forward(i, x, lambda y: self.loss(y, labels))

    def _timed(self, action: Action, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.monotonic()
        result = function(*arguments)
        self.events.append(Event(self.rank, action, start, time.monotonic()))
        return result


def _text(value: Value) -> str:
    return f"{value.kind} of microbatch {value.microbatch} from stage {value.stage}"
