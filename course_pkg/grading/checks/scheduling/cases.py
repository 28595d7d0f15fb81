"""`scheduling`: the cases of its questions, and the right values from `course_pkg.serving`.

Times are whole milliseconds, so that there is nothing to round. Chapter: exercises.
"""

from collections.abc import Sequence as Row
from functools import partial
from random import Random
from typing import Any

import numpy as np

from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.scheduler import Scheduler
from course_pkg.serving.sequence import Sequence
from course_pkg.serving.simulator.cost import CostModel
from course_pkg.serving.simulator.jobs import Job
from course_pkg.serving.simulator.loop import Simulation, simulate
from course_pkg.serving.simulator.mlfq import SkipJoinMLFQ
from course_pkg.serving.simulator.policies import ContinuousBatching, StaticBatching
from course_pkg.serving.simulator.statistics import goodput, per_token
from course_pkg.serving.simulator.workload import requests

from ...contract.comparators import wrong_type

Inputs = dict[str, Any]
NEVER = float("inf")


def by_hand(rng: Random | None) -> Inputs:
    """Running sequences and prompts that end in the third step; answers in batches of two."""
    if rng is None:
        return {"budget": 48, "running": [1, 1, 30, 1], "waiting": [25, 40], "answers": [5, 2, 3, 7, 4]}
    running = [1, 1, 1]
    running.insert(rng.randint(0, 3), rng.randint(10, 30))
    budget = sum(running) + rng.randint(6, 25)
    left = budget - sum(running)  # for the first prompt, which needs 2 to 9 more
    first = left + rng.randint(2, 9)
    second = (budget - 4 - (first - left)) + rng.randint(2, 12)
    return {
        "budget": budget, "running": running, "waiting": [first, second], "answers": _answers(rng)
    }  # fmt: skip


def _answers(rng: Random) -> list[int]:
    """Five lengths: the second request is the first to end, the fourth is the longest."""
    while True:
        answers = rng.sample(range(2, 16), 5)
        a, b, c, d, _ = answers
        if b + 1 < a and b + c != a and d > c:
            return answers


def _scheduler(
    running: Row[tuple[str, int, int]], waiting: Row[tuple[str, int]], free: int, size: int,
    budget: int, places: int,
) -> Scheduler:  # fmt: skip
    """The course's scheduler in that state, without a prefix cache."""
    blocks = BlockManager(
        free + sum(-(-computed // size) for _, _, computed in running), size, prefix_cache=False
    )
    scheduler = Scheduler(blocks, budget, places)
    for name, tokens, *computed in [*running, *waiting]:
        sequence = Sequence(name, [0] * tokens, max_new_tokens=1)
        scheduler.add(sequence)
        if computed:
            scheduler.waiting.remove(sequence)
            scheduler.running.append(sequence)
            blocks.allocate(sequence, *computed)
    return scheduler


def _steps(case: Inputs) -> list[list[int]]:
    """The tokens of each sequence in the first two steps, with blocks and places enough."""
    running = [(f"r{i}", 50 + left, 50) for i, left in enumerate(case["running"])]
    waiting = [(f"w{i}", tokens) for i, tokens in enumerate(case["waiting"])]
    scheduler, steps = _scheduler(running, waiting, 1000, 1, case["budget"], 6), []
    for sequence in [*scheduler.running, *scheduler.waiting]:
        sequence.max_new_tokens = 9
    for _ in range(2):
        step = scheduler.schedule()
        counts = {entry.sequence.id: entry.count for entry in step.scheduled}
        steps.append([counts.get(name, 0) for name, *_ in [*running, *waiting]])
        scheduler.update(step, {e.sequence.id: 1 for e in step.scheduled if e.samples})
    return steps


def by_hand_first_expected(case: Inputs) -> list[int]:
    """The tokens of the first step."""
    return _steps(case)[0]


def by_hand_second_expected(case: Inputs) -> list[int]:
    """The tokens of the second step."""
    return _steps(case)[1]


def _finished(arrivals: Row[int], answers: Row[int], places: int, continuous: bool) -> list[int]:
    """When requests leave, if every iteration takes 1."""
    policy = (ContinuousBatching if continuous else StaticBatching)(places)
    coming = requests(arrivals, [1] * len(answers), answers)
    return simulate(coming, policy, CostModel(base=1.0)).finished.astype(int).tolist()


def by_hand_static_expected(case: Inputs) -> list[int]:
    """Batches of two that stay together."""
    return _finished([0] * 5, case["answers"], 2, False)


def by_hand_continuous_expected(case: Inputs) -> list[int]:
    """Two places."""
    return _finished([0] * 5, case["answers"], 2, True)


def batching_expected(inputs: Inputs) -> list[int]:
    """From the simulator."""
    return _finished(*inputs.values())


def _requests(rng: Random, size: int, continuous: bool = True, *, gaps: Row[int] = (0,)) -> Inputs:
    """Requests; gaps: the times between arrivals that may occur."""
    number, places = rng.randint(3, 5) + size, 2 + size % 2
    arrivals = [0]
    while len(arrivals) < number:
        arrivals.append(arrivals[-1] + rng.choice(gaps))
    answers = [rng.randint(1, 9) for _ in arrivals]
    return {"arrivals": arrivals, "answers": answers, "places": places, "continuous": continuous}


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
    shift, late = rng.randint(2, 9), sum(inputs["answers"]) + rng.randint(2, 20)
    number = len(inputs["arrivals"])
    inputs["arrivals"] = [shift + late * (i >= number - 2) for i in range(number)]
    return inputs


def step_expected(inputs: Inputs) -> tuple[dict[str, int], list[str]]:
    """From the course's scheduler."""
    step = _scheduler(*inputs.values()).schedule()
    scheduled = {entry.sequence.id: entry.count for entry in step.scheduled}
    return scheduled, [sequence.id for sequence in step.preempted]


def step_difference(expected: tuple[Inputs, list[str]], given: Any) -> str | None:
    """Compare what a step gives, sequence by sequence; no tokens are as good as no entry."""
    pair = list(given) if isinstance(given, list | tuple) else []
    if [type(part) for part in pair] not in ([dict, list], [dict, tuple]):
        return wrong_type("a pair (dict of tokens, list of preempted sequences)", given)
    for name in {**expected[0], **pair[0]}:
        right, other = expected[0].get(name, 0), pair[0].get(name, 0)
        if type(other) is not int or other != right:
            return f"sequence {name!r} gets {right} tokens, but {other!r} was given"
    if (preempted := list(pair[1])) != expected[1]:
        return f"the preempted sequences are {expected[1]}, but {preempted} was given"
    return None


def _state(
    rng: Random, left: Row[int], prompts: Row[int] = (), *, block: int = 0, full: bool = False,
    free: int | None = None, budget: int | None = None, spare: int | None = None,
) -> Inputs:  # fmt: skip
    """A state; left: what running sequences have to compute. Whatever is None is enough for all.

    full: the blocks of running sequences are full. free: blocks that those that run leave free.
    """
    block = block or rng.choice([4, 8, 16])
    names = rng.sample("abcdefghijklmnopqrstuvwxyz", len(left) + len(prompts))
    running, needs = [], 0
    for name, tokens in zip(names, left, strict=False):
        computed = rng.randint(2, 5) * block - (0 if full else rng.randint(1, block - 1))
        running.append((name, computed + tokens, computed))
        needs += -(-(computed + tokens) // block) - -(-computed // block)
    return {
        "running": running,
        "waiting": list(zip(names[len(left) :], prompts, strict=True)),
        "free_blocks": needs + (9 + sum(prompts) if free is None else free),
        "block_size": block,
        "token_budget": sum(left) + sum(prompts) + 2 if budget is None else budget,
        "places": len(names) if spare is None else len(left) + spare,
    }


def step_all(rng: Random, size: int) -> Inputs:
    """Enough of everything."""
    return _state(rng, [1, rng.randint(9, 30), 1][: 1 + size], [rng.randint(9, 30), 12][:size])


def step_chunk(rng: Random, size: int) -> Inputs:
    """The budget ends within the first prompt, after it, or within the second."""
    left, prompts = [1] * rng.randint(2, 4), [rng.randint(12, 30) for _ in range(3)]
    some = (rng.randint(3, 11), prompts[0], prompts[0] + rng.randint(2, 11))[size % 3]
    return _state(rng, left, prompts, budget=len(left) + some)


def step_behind(rng: Random, size: int) -> Inputs:
    """A budget that is used up by a prompt that runs, with others behind it."""
    left = [1, rng.randint(20, 40), 1, rng.randint(5, 19) if size else 1, 1][: 4 + size % 2]
    return _state(rng, left, budget=len(left) + rng.randint(2, left[1] - 4))


def step_places(rng: Random, size: int) -> Inputs:
    """Fewer places than sequences."""
    prompts = [rng.randint(5, 30) for _ in range(3)]
    return _state(rng, [1] * rng.randint(1, 4), prompts, spare=size % 3)


def step_fits(rng: Random, size: int) -> Inputs:
    """The first or the second prompt does not fit; a later one would, or a chunk of it."""
    block, free = rng.choice([4, 8, 16]), rng.randint(3, 5)
    large, first = free + rng.randint(1, 2), rng.randint(2, free - 1)
    blocks = ([large, 1], [first, free - first + 1, 1], [large])[size % 3]
    prompts = [block * n - rng.randint(0, 2) for n in blocks]
    budget = 4 + block * rng.randint(1, free - 1) if size % 3 == 2 else None
    left = [1] * rng.randint(2, 3)
    return _state(rng, left, prompts, block=block, full=rng.random() < 0.5, free=free, budget=budget)


def step_preempt(rng: Random, size: int) -> Inputs:
    """Blocks end before the last one; a small prompt waits."""
    left = [1, 1 if size % 2 == 0 else rng.randint(9, 30), *[1] * rng.randint(1, 2), 1]
    needs = -rng.randint(2, 3 if left[1] == 1 else 4)
    return _state(rng, left, [rng.randint(1, 4)], full=True, free=needs)


def step_itself(rng: Random, size: int) -> Inputs:
    """Only the last one lacks a block."""
    return _state(rng, [1] * (2 + size), [rng.randint(1, 4)], full=True, free=-1)


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
        "longer": rng.randint(2**level // 2 * quantum + 1, 2**level * quantum - 1),
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
    quantum = step * rng.randint(2, 3) + rng.randint(0, 1)
    jobs, now = [], rng.randint(1, 9) if late == "idle" else 0
    for _ in range(3 + size % 3):
        first = rng.randint(step + 1, quantum * long)
        jobs.append((now, first, rng.randint(2, 9)))
        if late == "busy":
            now += rng.choice([0, step, first, first + 2 * step])
        elif late == "idle":
            now += rng.randint(200, 400)
    starvation = rng.randint(4, 9) * step if starves else NEVER
    return {
        "jobs": jobs, "step": step, "quantum": quantum, "queues": queues, "starvation": starvation
    }  # fmt: skip


mlfq_turns = _jobs
mlfq_skip = partial(_jobs, long=5)
mlfq_arrivals = partial(_jobs, late="busy", long=3)
mlfq_lowest = partial(_jobs, queues=2, long=3)
mlfq_idle = partial(_jobs, late="idle")


def mlfq_starvation(rng: Random, size: int) -> Inputs:
    """Some jobs starve, one at a time."""
    while True:
        inputs = _jobs(rng, size, starves=True)
        try:
            if mlfq_expected(inputs) != mlfq_expected(inputs | {"starvation": NEVER}):
                return inputs
        except _SeveralStarveError:
            continue


def percentile_expected(inputs: Inputs) -> int:
    """numpy's percentile of that definition."""
    return int(np.percentile(inputs["values"], inputs["p"], method="inverted_cdf"))


def _values(rng: Random, number: int, p: int) -> Inputs:
    return {"values": rng.sample(range(20, 999), number), "p": p}


def percentile_between(rng: Random, size: int) -> Inputs:
    """p percent of the number is no whole number."""
    return _values(rng, rng.randint(11, 19), rng.choice([25, 75, 90]) + 1)


def percentile_whole(rng: Random, size: int) -> Inputs:
    """p percent of the number is a whole number."""
    return _values(rng, 20, rng.choice([5, 25, 50, 75, 90, 95]))


def percentile_few(rng: Random, size: int) -> Inputs:
    """Fewer values than a tail has percent."""
    return _values(rng, 1 + 2 * size, rng.choice([90, 95, 99, 100]))


def summary_expected(inputs: Inputs) -> dict[str, float]:
    """From the simulator's statistics; a thousand times what is per millisecond."""
    arrival, first, finished, tokens = np.array(inputs["requests"]).T
    result = Simulation(
        arrival, tokens, tokens, first, finished, finished, alone=tokens,
        busy=0, stalled=0, iterations=0, swapped=0,
    )  # fmt: skip
    targets = {"first_token": inputs["first_target"], "between_tokens": inputs["token_target"]}
    return {
        "ttft": float(np.mean(first - arrival)),
        "tpot": float(np.nanmean(per_token(result))),
        "goodput": 1000 * goodput(result, **targets),
    }


def _served(rng: Random, size: int, *, single: bool = False, edge: bool = False) -> Inputs:
    """Requests; single: some have one token. edge: they just meet a target, or have one token."""
    first_target, token_target = rng.randint(200, 500), rng.randint(20, 60)
    rows, arrival = [], rng.randint(300, 900)
    for number in range(4 + size):
        tokens = 1 if single and number % 2 else rng.randint(3, 20)
        wait = first_target + (0 if edge else rng.choice([-90, -50, -7, 60, 150]))
        gap = token_target + (0 if edge else rng.choice([-9, -5, -3, 6, 15]))
        first = arrival + wait
        rows.append((arrival, first, first + gap * (tokens - 1), tokens))
        arrival += rng.randint(20, 300)
    return {"requests": rows, "first_target": first_target, "token_target": token_target}


summary_ttft = summary_tpot = summary_goodput = _served
summary_single = partial(_served, single=True)
summary_edge = partial(_served, edge=True)
