"""A schedule on real processes, with a clock: the bubble measured instead of computed.

The stages sleep instead of computing, so that several ranks share few cores without slowing each
other down. time.monotonic is one clock for all processes.
"""

import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.acceleration.parallel.launch import launch
from course_pkg.acceleration.parallel.pipeline_parallel import Pipeline, gather_objects
from course_pkg.acceleration.parallel.pipeline_stage import Stage
from course_pkg.acceleration.parallel.schedules import Schedule, check
from course_pkg.acceleration.parallel.timeline import Timeline, require_durations


class FixedTimeStage(Stage):
    """A stage whose passes take a fixed time, in seconds by kind, and compute nothing."""

    def __init__(self, durations: Mapping[str, float]):
        super().__init__(nn.Identity())
        self.durations = durations
        self._held: set[int] = set()

    @property
    def in_flight(self) -> int:
        return len(self._held)

    def forward(self, microbatch: int, x: Tensor, then=None) -> Tensor:
        self._held.add(microbatch)
        time.sleep(self.durations["F"])
        return torch.zeros(1)

    def backward(self, microbatch: int, gradient: Tensor | None) -> Tensor:
        time.sleep(self.durations["B"])
        self._held.remove(microbatch)
        return torch.zeros(1)

    def backward_input(self, microbatch: int, gradient: Tensor | None) -> Tensor:
        time.sleep(self.durations["I"])
        return torch.zeros(1)

    def backward_weight(self, microbatch: int) -> None:
        time.sleep(self.durations["W"])
        self._held.remove(microbatch)


def measure(
    schedule: Schedule, durations: Mapping[str, float], *, timeout: float = 60.0
) -> Timeline:
    """The timeline of a schedule on real processes, one per rank, whose stages sleep.

    Args:
        durations: seconds of each kind of pass on one chunk; from 0.01 on, sending hardly matters.
    """
    check(schedule)
    require_durations(durations, {a.kind for actions in schedule.actions for a in actions})
    return launch(_sleep_through, schedule.ranks, schedule, dict(durations), timeout=timeout)[0]


def _sleep_through(group: Group, schedule: Schedule, durations: dict[str, float]) -> Timeline:
    stages = [FixedTimeStage(durations) for _ in range(schedule.chunks)]
    pipeline = Pipeline(
        stages, schedule, group, lambda y, z: y, activation=lambda ids: torch.empty(1)
    )
    nothing = [(torch.zeros(1), torch.zeros(1))] * schedule.microbatches
    pipeline.run(nothing, 1)
    step = pipeline.run(nothing, 1)
    events = [event for own in gather_objects(step.events, group) for event in own]
    return Timeline(group.size, tuple(events))
