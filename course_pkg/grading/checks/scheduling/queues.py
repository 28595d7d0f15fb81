"""`scheduling`: jobs for skip-join MLFQ, and when they finish in the course's simulator.

Times are whole milliseconds, so that there is nothing to round. Chapter: exercises.
"""

from functools import partial
from random import Random
from typing import Any

from course_pkg.serving.simulator import CostModel, Job, SkipJoinMLFQ, requests, simulate

Inputs = dict[str, Any]
NEVER = float("inf")


def join_expected(inputs: Inputs) -> int:
    """From the policy."""
    first, quantum, queues = inputs.values()
    policy = SkipJoinMLFQ(1, quantum, cost=CostModel(prompt=1.0), levels=queues)
    return policy.join(Job(0, 0.0, prompt=first, output=1))


def _first(rng: Random, size: int, kind: str = "longer") -> Inputs:
    """A first iteration in relation to the quanta."""
    quantum, queues = rng.randint(4, 20), rng.randint(4, 6)
    level = rng.randint(1, queues - 2) if size else queues - 1
    first = {
        "longer": rng.randint(
            2**level // 2 * quantum + 1, 2**level * quantum - (1 if size else quantum)
        ),
        "short": rng.randint(1, quantum - 1),
        "exact": quantum * 2**level,
        "beyond": quantum * 2 ** (queues - 1 + size) + rng.randint(1, 9),
    }[kind]
    return {"first": first, "quantum": quantum, "queues": queues}


join_longer = _first
join_short = partial(_first, kind="short")
join_exact = partial(_first, kind="exact")
join_beyond = partial(_first, kind="beyond")


class _SeveralStarveError(Exception):
    """Two jobs are promoted at once."""


class _OneByOne(SkipJoinMLFQ):
    """Refuses cases that depend on the order in which starving jobs are promoted."""

    def _promote(self, now: float) -> None:
        before = len(self.queues[0])
        super()._promote(now)
        if len(self.queues[0]) > before + 1:
            raise _SeveralStarveError


def mlfq_expected(inputs: Inputs) -> list[int]:
    """From the simulator: an iteration takes `step`, and a token of a prompt 1."""
    arrivals, firsts, answers = zip(*inputs["jobs"], strict=True)
    step, quantum, queues, starvation = list(inputs.values())[1:]
    cost = CostModel(base=step, prompt=1)
    policy = _OneByOne(1, quantum, cost=cost, levels=queues, starvation=starvation)
    coming = requests(arrivals, [first - step for first in firsts], answers)
    return simulate(coming, policy, cost).finished.astype(int).tolist()


def _jobs(
    rng: Random, size: int, *, late: str = "", long: int = 1, queues: int = 8, starves: bool = False
) -> Inputs:
    """Jobs; long: first iterations of up to so many quanta. late: when jobs arrive."""
    step = rng.randint(2, 5)
    quantum = step + rng.randint(1, step)
    jobs, now = [], rng.randint(1, 9) if late == "idle" else 0
    for _ in range(3 + size % 3 + starves):
        first = rng.randint(step + 1, quantum * long)
        jobs.append((now, first, rng.randint(2, 12)))
        if late == "busy":
            now += rng.choice([step, first + 2 * step] if starves else [0, step, first])
        elif late == "idle":
            now += rng.randint(200, 400)
    starvation = rng.randint(4, 9) * step if starves else NEVER
    return {
        "jobs": jobs, "step": step, "quantum": quantum, "queues": queues, "starvation": starvation
    }  # fmt: skip


mlfq_turns = _jobs
mlfq_skip = partial(_jobs, long=5)
mlfq_arrivals = partial(_jobs, late="busy", long=3)
mlfq_idle = partial(_jobs, late="idle")


def mlfq_lowest(rng: Random, size: int) -> Inputs:
    """Two queues, or three; some jobs fit none."""
    return _jobs(rng, size, queues=2 + size % 2, long=3 + 3 * (size % 2))


def mlfq_starvation(rng: Random, size: int) -> Inputs:
    """Some jobs starve, one at a time."""
    while True:
        inputs = _jobs(rng, size, late="busy", starves=True)
        try:
            if mlfq_expected(inputs) != mlfq_expected(inputs | {"starvation": NEVER}):
                return inputs
        except _SeveralStarveError:
            continue
