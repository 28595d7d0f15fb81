"""When the ranks of a pipeline work and when they idle: simulated, measured, and by formula.

Sources: Megatron-LM (Narayanan et al. 2021), zero bubble (Qi et al. 2023).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from course_pkg.acceleration.parallel.schedules import (
    Action,
    Schedule,
    Value,
    check,
    gives,
    in_order,
    needs,
)
from course_pkg.common.arguments import require_between, require_integer


class Event(NamedTuple):
    """When a rank did an action, in seconds, or in whatever unit the durations have."""

    rank: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """When each action was done: computed by `simulate`, or measured on real ranks."""

    ranks: int
    events: tuple[Event, ...]

    @property
    def makespan(self) -> float:
        """From the first start to the last end."""
        return max(e.end for e in self.events) - min(e.start for e in self.events)

    @property
    def bubble(self) -> float:
        """The share of all ranks' time in which they idle."""
        work = sum(event.end - event.start for event in self.events)
        return 1 - work / (self.ranks * self.makespan)

    def chart(self) -> str:
        """One row per rank and one column per unit of time; a dot is an idle one."""
        begin = min(event.start for event in self.events)
        columns = math.ceil(self.makespan - 1e-9)
        rows = [["."] * columns for _ in range(self.ranks)]
        for rank, action, start, end in self.events:
            for column in range(round(start - begin), round(end - begin)):
                rows[rank][column] = str(action)
        wide = max(len(cell) for row in rows for cell in row)
        lines = [" ".join(cell.ljust(wide) for cell in row).rstrip() for row in rows]
        return "\n".join(f"rank {rank}  {line}" for rank, line in enumerate(lines))


def simulate(schedule: Schedule, durations: Mapping[str, float]) -> Timeline:
    """The timeline if every action starts as soon as its rank and its inputs are ready.

    Args:
        durations: of each kind of action on one chunk, in any unit; messages take no time.
    """
    check(schedule)
    require_durations(durations, {a.kind for actions in schedule.actions for a in actions})
    free: list[float] = [0] * schedule.ranks
    ready: dict[Value, float] = {}
    events = []
    for rank, action in in_order(schedule):
        start = max([free[rank]] + [ready[value] for value in needs(schedule, rank, action)])
        end = start + durations[action.kind]
        free[rank] = end
        for value in gives(schedule, rank, action):
            ready[value] = end
        events.append(Event(rank, action, start, end))
    return Timeline(schedule.ranks, tuple(events))


def require_durations(durations: Mapping[str, float], kinds: Iterable[str]) -> None:
    """Raise ValueError unless each kind of action has a duration that is above 0."""
    missing = sorted(set(kinds) - set(durations))
    if missing:
        raise ValueError(f"durations {dict(durations)} lack {', '.join(missing)}")
    for kind, seconds in durations.items():
        require_between(seconds, f"the duration of {kind}", 0, math.inf)


def bubble_fraction(ranks: int, microbatches: int, chunks: int = 1) -> float:
    """(p − 1)/(v·m + p − 1): the idle share of the time of GPipe, 1F1B and interleaved 1F1B.

    It holds for any ratio of F to B, if all stages are equal and messages take no time. Narayanan
    et al. 2021 state it relative to the time of work, (p − 1)/(v·m).
    """
    idle = require_integer(ranks, "ranks") - 1
    work = require_integer(microbatches, "microbatches") * require_integer(chunks, "chunks")
    return idle / (work + idle)
