"""`scheduling`: the cases of its questions, and the right values from `course_pkg.serving`.

Chapter: exercises.
"""

from collections.abc import Sequence as Row
from functools import partial
from random import Random
from typing import Any

import numpy as np

from course_pkg.serving.simulator import (
    ContinuousBatching,
    CostModel,
    Simulation,
    StaticBatching,
    goodput,
    per_token,
    requests,
    simulate,
)

from .queues import (  # noqa: F401 (questions.toml names them)
    join_beyond,
    join_exact,
    join_expected,
    join_longer,
    join_short,
    mlfq_arrivals,
    mlfq_expected,
    mlfq_idle,
    mlfq_lowest,
    mlfq_skip,
    mlfq_starvation,
    mlfq_turns,
)
from .steps import (  # noqa: F401 (questions.toml names them)
    scheduler_in,
    step_all,
    step_behind,
    step_chunk,
    step_difference,
    step_expected,
    step_fits,
    step_itself,
    step_places,
    step_preempt,
)

Inputs = dict[str, Any]


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


def _steps(case: Inputs) -> list[list[int]]:
    """The tokens of each sequence in the first two steps, with blocks and places enough."""
    running = [(f"r{i}", 50 + left, 50) for i, left in enumerate(case["running"])]
    waiting = [(f"w{i}", tokens) for i, tokens in enumerate(case["waiting"])]
    scheduler, steps = scheduler_in(running, waiting, 1000, 1, case["budget"], 6), []
    for sequence in [*scheduler.running, *scheduler.waiting]:
        sequence.max_new_tokens = 9
    for _ in range(2):
        step = scheduler.schedule()
        counts = {sequence.id: len(tokens) for sequence, tokens in step.scheduled.items()}
        steps.append([counts.get(name, 0) for name, *_ in [*running, *waiting]])
        scheduler.update(step, {sequence.id: 1 for sequence in step.sampling})
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
