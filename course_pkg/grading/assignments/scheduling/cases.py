"""`scheduling`: the cases of its questions, and the right values from `course_pkg.serving`.

Times of queues are whole milliseconds, so that there is nothing to round.

Chapter: exercises.
"""

from functools import partial
from random import Random
from statistics import fmean
from typing import Any

from course_pkg.grading.assignments.scheduling.scheduler_states import *  # noqa: F403 (questions.toml)
from course_pkg.grading.assignments.scheduling.scheduler_states import first_steps
from course_pkg.grading.questions.draws import each_then_any
from course_pkg.studies.scheduling.iteration_cost import CostModel
from course_pkg.studies.scheduling.mlfq import SkipJoinMLFQ
from course_pkg.studies.scheduling.policies import ContinuousBatching, Job, StaticBatching
from course_pkg.studies.scheduling.simulation import Simulation, goodput, simulate
from course_pkg.studies.scheduling.workload import requests

Inputs = dict[str, Any]
NEVER = float("inf")


def _finished(arrivals: list[int], answers: list[int], places: int, continuous: bool) -> list[int]:
    """When requests leave, if every iteration takes 1."""
    policy = (ContinuousBatching if continuous else StaticBatching)(places)
    coming = requests(arrivals, [1] * len(answers), answers)
    return [int(job.finished) for job in simulate(coming, policy, CostModel(base=1.0)).jobs]


def by_hand_expected(case: Inputs) -> dict[str, list[int]]:
    first, second = first_steps(case)
    static, continuous = (
        _finished([0] * 5, case["answers"], 2, continuous) for continuous in (False, True)
    )
    return {"first": first, "second": second, "static": static, "continuous": continuous}


def batching_expected(inputs: Inputs) -> list[int]:
    return _finished(*inputs.values())


def _requests(
    rng: Random, size: int, continuous: bool = True, *, gaps: tuple[int, ...] = (0,)
) -> Inputs:
    """Requests; gaps: the times between arrivals that may occur."""
    number = rng.randint(3, 5) + size
    arrivals = [0]
    while len(arrivals) < number:
        arrivals.append(arrivals[-1] + rng.choice(gaps))
    answers = [rng.randint(1, 9) for _ in arrivals]
    where = {"places": 2 + size % 2, "continuous": continuous}
    return {"arrivals": arrivals, "answers": answers, **where}


batching_static = partial(_requests, continuous=False)
batching_continuous = _requests


def batching_arrivals(rng: Random, size: int) -> Inputs:
    """Both ways; the server is never empty, because the first answer is long."""
    inputs = _requests(rng, size, size % 2 == 0, gaps=(0, 1, 2, 3))
    inputs["answers"][0] = inputs["arrivals"][-1] + rng.randint(1, 3)
    return inputs


def batching_idle(rng: Random, size: int) -> Inputs:
    """Both ways; the last requests come after the others have left, the first not at 0."""
    inputs = _requests(rng, size, size % 2 == 0)
    first = rng.randint(2, 9)
    last = first + sum(inputs["answers"]) + rng.randint(2, 20)
    inputs["arrivals"] = [first] * (len(inputs["arrivals"]) - 2) + [last] * 2
    return inputs


def join_expected(inputs: Inputs) -> int:
    first, quantum, queues = inputs.values()
    policy = SkipJoinMLFQ(1, quantum, cost=CostModel(prompt=1.0), levels=queues)
    return policy.join(Job(0, 0.0, prompt=first, output=1))


def _first(rng: Random, size: int, kind: str = "longer") -> Inputs:
    """A first iteration in relation to the quanta."""
    quantum = rng.randint(4, 20)
    queues = rng.randint(4, 6)
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


def join_short(rng: Random, size: int) -> Inputs:
    """Within the first quantum; beyond all quanta; then any of these."""
    kinds = "short", "beyond"
    return _first(rng, 0, kinds[each_then_any(rng, size, 2)])


join_longer = _first
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
    return [int(job.finished) for job in simulate(coming, policy, cost).jobs]


def _jobs(
    rng: Random, size: int, *, late: str = "", long: int = 1, queues: int = 8, starves: bool = False
) -> Inputs:
    """Jobs; long: first iterations of up to that many quanta. late: when jobs arrive."""
    step = rng.randint(2, 5)
    quantum = step + rng.randint(1, step)
    jobs = []
    now = rng.randint(1, 9) if late == "idle" else 0
    for _ in range(3 + size % 3 + (1 if starves else 0)):
        first = rng.randint(step + 1, quantum * long)
        jobs.append((now, first, rng.randint(2, 12)))
        if late == "busy":
            now += rng.choice([step, first + 2 * step] if starves else [0, step, first])
        elif late == "idle":
            now += rng.randint(200, 400)
    return {
        "jobs": jobs,
        "step": step,
        "quantum": quantum,
        "queues": queues,
        "starvation": rng.randint(4, 9) * step if starves else NEVER,
    }


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


def percentile_expected(inputs: Inputs) -> int:
    """By the definition in the task: by counting, without a rank."""
    values, p = inputs.values()
    return min(v for v in values if 100 * sum(other <= v for other in values) >= p * len(values))


def _values(rng: Random, number: int, p: int) -> Inputs:
    return {"values": rng.sample(range(20, 999), number), "p": p}


def percentile_between(rng: Random, size: int) -> Inputs:
    """p percent of the number is a little more than a whole number."""
    pairs = [(n, p) for n in range(7, 13) for p in range(40, 99) if 0 < n * p % 100 < n * p / 101]
    return _values(rng, *rng.choice(pairs))


def percentile_whole(rng: Random, size: int) -> Inputs:
    """p percent of the number is a whole number, also if p / 100 is rounded."""
    if size == 2:  # 28 / 100 * 25 and 56 / 100 * 25 are a little more than 7 and 14
        return _values(rng, 25, rng.choice([28, 56]))
    return _values(rng, 10 + size * 2, rng.choice([25, 50, 75] if size else [10, 50, 90]))


def percentile_few(rng: Random, size: int) -> Inputs:
    """Fewer values than a tail has percent."""
    return _values(rng, 1 + 2 * size, rng.choice([90, 95, 99, 100]))


def summary_expected(inputs: Inputs) -> dict[str, float]:
    """From the simulator's statistics; a thousand times what is per millisecond."""
    jobs = [
        Job(i, arrival, tokens, tokens, first_token=first, last_token=finished, finished=finished)
        for i, (arrival, first, finished, tokens) in enumerate(inputs["requests"])
    ]
    result = Simulation(tuple(jobs), CostModel(base=1.0), busy=0.0)
    targets = {"first_token": inputs["first_target"], "between_tokens": inputs["token_target"]}
    return {
        "ttft": fmean(job.first_token - job.arrival for job in jobs),
        "tpot": fmean(job.per_token for job in jobs if job.output > 1),
        "goodput": 1000 * goodput(result, **targets),
    }


def _served(rng: Random, size: int, *, single: bool = False, edge: bool = False) -> Inputs:
    """Requests; single: some have one token. edge: they just meet a target, or have one token."""
    first_target = rng.randint(200, 500)
    token_target = rng.randint(20, 60)
    rows = []
    arrival = rng.randint(300, 900)
    for number in range(4 + size):
        tokens = 1 if single and number % 2 else rng.randint(2, 9)
        wait = first_target + (0 if edge else rng.choice([-90, -50, -7, 60, 150]))
        gap = token_target + (0 if edge else rng.choice([-9, -5, -3, 6, 15]))
        first = arrival + wait
        rows.append((arrival, first, first + gap * (tokens - 1), tokens))
        arrival += rng.randint(20, 300)
    return {"requests": rows, "first_target": first_target, "token_target": token_target}


summary_ttft = summary_tpot = summary_goodput = _served
summary_single = partial(_served, single=True)
summary_edge = partial(_served, edge=True)
