"""`scheduling`: the cases of its questions, and the right values from `course_pkg.serving`.

Times of queues are whole milliseconds, so that there is nothing to round.
"""

from random import Random
from statistics import fmean
from typing import Any

from course_pkg.grading.questions.comparators import wrong_type
from course_pkg.grading.questions.draws import each_then_any
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.scheduler import Scheduler
from course_pkg.serving.sequence import Sequence
from course_pkg.studies.scheduling.iteration_cost import CostModel
from course_pkg.studies.scheduling.mlfq import SkipJoinMLFQ
from course_pkg.studies.scheduling.policies import ContinuousBatching, Job, StaticBatching
from course_pkg.studies.scheduling.simulation import Simulation, goodput, simulate
from course_pkg.studies.scheduling.workload import requests

Inputs = dict[str, Any]
NEVER = float("inf")


def scheduler_in(
    running: list[tuple[str, int, int]],
    waiting: list[tuple[str, int]],
    free_blocks: int,
    block_size: int,
    token_budget: int,
    places: int,
) -> Scheduler:
    """The course's scheduler in that state, without a prefix cache."""
    used = sum(-(-computed // block_size) for _, _, computed in running)
    blocks = BlockManager(free_blocks + used, block_size, prefix_cache=False)
    scheduler = Scheduler(blocks, token_budget, places)
    for name, tokens, *computed in [*running, *waiting]:
        sequence = Sequence(name, [0] * tokens, max_new_tokens=1)
        scheduler.add(sequence)
        if computed:
            scheduler.waiting.remove(sequence)
            scheduler.running.append(sequence)
            blocks.allocate(sequence, *computed)
    return scheduler


def by_hand(rng: Random | None) -> Inputs:
    """Running sequences and prompts that end in the third step; answers in batches of two."""
    if rng is None:
        case = {"budget": 48, "running": [1, 1, 30, 1], "waiting": [25, 40]}
        return case | {"answers": [5, 2, 3, 7, 4]}
    running = [1, 1, 1]
    running.insert(rng.randint(0, 3), rng.randint(10, 30))
    budget = sum(running) + rng.randint(6, 25)
    left = budget - sum(running)  # for the first prompt, which needs 2 to 9 more
    first = left + rng.randint(2, 9)
    second = (budget - 4 - (first - left)) + rng.randint(2, 12)
    case = {"budget": budget, "running": running, "waiting": [first, second]}
    return case | {"answers": _answers(rng)}


def _answers(rng: Random) -> list[int]:
    """Five lengths: the second request is the first to end, the fourth is the longest."""
    while True:
        answers = rng.sample(range(2, 16), 5)
        a, b, c, d, _ = answers
        if b + 1 < a and b + c != a and d > c:
            return answers


def first_steps(case: Inputs) -> list[list[int]]:
    """The tokens of each sequence in the first two steps, with blocks and places enough."""
    running = [(f"r{i}", 50 + left, 50) for i, left in enumerate(case["running"])]
    waiting = [(f"w{i}", tokens) for i, tokens in enumerate(case["waiting"])]
    scheduler = scheduler_in(running, waiting, 1000, 1, case["budget"], 6)
    steps = []
    for sequence in [*scheduler.running, *scheduler.waiting]:
        sequence.max_new_tokens = 9
    for _ in range(2):
        step = scheduler.schedule()
        counts = {sequence.id: len(tokens) for sequence, tokens in step.scheduled.items()}
        steps.append([counts.get(name, 0) for name, *_ in [*running, *waiting]])
        scheduler.update(step, {sequence.id: 1 for sequence in step.sampling})
    return steps


def step_expected(inputs: Inputs) -> tuple[dict[str, int], list[str]]:
    """From the course's scheduler."""
    step = scheduler_in(**inputs).schedule()
    scheduled = {sequence.id: len(tokens) for sequence, tokens in step.scheduled.items()}
    return scheduled, [sequence.id for sequence in step.preempted]


def step_difference(expected: tuple[Inputs, list[str]], given: Any) -> str | None:
    """Compare what a step gives, sequence by sequence; no tokens are as good as no entry."""
    pair = list(given) if isinstance(given, list | tuple) else []
    if [type(part) for part in pair] not in ([dict, list], [dict, tuple]):
        return wrong_type("a pair (dict of tokens, list of preempted sequences)", given)
    for name in {**expected[0], **pair[0]}:
        right = expected[0].get(name, 0)
        other = pair[0].get(name, 0)
        if type(other) is not int or other != right:
            return f"tokens of {name!r}: expected {right}, but {other!r} was given"
    if (preempted := list(pair[1])) != expected[1]:
        return f"preempted: expected {expected[1]}, but {preempted} was given"
    return None


def _state(
    rng: Random,
    left: list[int],
    prompts: tuple[int, ...] | list[int] = (),
    *,
    block: int = 0,
    full: bool = False,
    free: int | None = None,
    budget: int | None = None,
    spare: int | None = None,
) -> Inputs:
    """A state; left: what running sequences have to compute. Whatever is None is enough for all.

    full: the blocks of running sequences are full. free: blocks that those that run leave free.
    """
    block = block or rng.choice([4, 8, 16])
    names = rng.sample("abcdefghijklmnopqrstuvwxyz", len(left) + len(prompts))
    running = []
    needs = 0
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
    left = [1] * rng.randint(2, 4)
    prompts = [rng.randint(12, 30) for _ in range(3)]
    some = [rng.randint(3, 11), *(prompts[0] + n for n in (0, 1, rng.randint(2, 11)))][size % 4]
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
    """The first or the second prompt does not fit; a later one would, or a chunk; or both fit."""
    block = rng.choice([4, 8, 16])
    free = rng.randint(3, 5)
    large = free + rng.randint(1, 2)
    first = rng.randint(2, free - 1)
    rest = free - first
    blocks = ([large, 1], [first, rest + 1, 1], [large], [first, rest])[size % 4]
    prompts = [block * n - rng.randint(0, 2) for n in blocks]
    budget = 4 + block * rng.randint(1, free - 1) if size % 4 == 2 else None
    left = [1] * rng.randint(2, 3)
    full = rng.random() < 0.5
    return _state(rng, left, prompts, block=block, full=full, free=free, budget=budget)


def _large(rng: Random, behind: int, more: int) -> Inputs:
    """The second sequence needs 7 blocks, and lacks `more` than what the last one gives back."""
    block = rng.choice([4, 8])
    inputs = _state(rng, [1, 7 * block, *[1] * behind], [rng.randint(1, 4)], block=block, full=True)
    name, tokens, computed = inputs["running"].pop()
    spare = rng.randint(1, block - 1) if behind > 1 else 0  # slots of its last block
    inputs["running"].append((name, tokens - spare, computed - spare))
    return inputs | {"free_blocks": 8 - computed // block - more}


def step_preempt(rng: Random, size: int) -> Inputs:
    """Blocks end before the last one; two have to go, or nobody; a small prompt waits."""
    if size % 4 in (1, 2):
        return _large(rng, 3, size % 4 - 1)
    free = -rng.randint(2, 3) if size % 4 == 0 else 0  # 0: exactly enough
    return _state(rng, [1] * rng.randint(4, 5), [rng.randint(1, 4)], full=True, free=free)


def step_itself(rng: Random, size: int) -> Inputs:
    """Only the last one lacks a block; or the one before it lacks more than the last one has."""
    if size == 2:
        return _large(rng, 1, 1)
    return _state(rng, [1] * (2 + size), [rng.randint(1, 4)], full=True, free=-1)


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
    return _finished(**inputs)


def draw_requests(
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


def batching_arrivals(rng: Random, size: int) -> Inputs:
    """Both ways; the server is never empty, because the first answer is long."""
    inputs = draw_requests(rng, size, size % 2 == 0, gaps=(0, 1, 2, 3))
    inputs["answers"][0] = inputs["arrivals"][-1] + rng.randint(1, 3)
    return inputs


def batching_idle(rng: Random, size: int) -> Inputs:
    """Both ways; the last requests come after the others have left, the first not at 0."""
    inputs = draw_requests(rng, size, size % 2 == 0)
    first = rng.randint(2, 9)
    last = first + sum(inputs["answers"]) + rng.randint(2, 20)
    inputs["arrivals"] = [first] * (len(inputs["arrivals"]) - 2) + [last] * 2
    return inputs


def join_expected(inputs: Inputs) -> int:
    cost = CostModel(prompt=1.0)
    policy = SkipJoinMLFQ(1, inputs["quantum"], cost=cost, levels=inputs["queues"])
    return policy.join(Job(0, 0.0, prompt=inputs["first"], output=1))


def draw_first(rng: Random, size: int, kind: str = "longer") -> Inputs:
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
    return draw_first(rng, 0, kinds[each_then_any(rng, size, 2)])


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
    step = inputs["step"]
    cost = CostModel(base=step, prompt=1)
    limits = {"levels": inputs["queues"], "starvation": inputs["starvation"]}
    policy = _OneByOne(1, inputs["quantum"], cost=cost, **limits)
    coming = requests(arrivals, [first - step for first in firsts], answers)
    return [int(job.finished) for job in simulate(coming, policy, cost).jobs]


def draw_jobs(
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


def mlfq_lowest(rng: Random, size: int) -> Inputs:
    """Two queues, or three; some jobs fit none."""
    return draw_jobs(rng, size, queues=2 + size % 2, long=3 + 3 * (size % 2))


def mlfq_starvation(rng: Random, size: int) -> Inputs:
    """Some jobs starve, one at a time."""
    while True:
        inputs = draw_jobs(rng, size, late="busy", starves=True)
        try:
            if mlfq_expected(inputs) != mlfq_expected(inputs | {"starvation": NEVER}):
                return inputs
        except _SeveralStarveError:
            continue


def percentile_expected(inputs: Inputs) -> int:
    """By the definition in the task: by counting, without a rank."""
    values, p = inputs["values"], inputs["p"]
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


def draw_served(rng: Random, size: int, *, single: bool = False, edge: bool = False) -> Inputs:
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
