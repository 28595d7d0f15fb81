"""`scheduling`: states of a scheduler, and the course's scheduler in such a state.

Chapter: exercises.
"""

from random import Random
from typing import Any

from course_pkg.grading.questions.comparators import wrong_type
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.scheduler import Scheduler
from course_pkg.serving.sequence import Sequence

Inputs = dict[str, Any]


def scheduler_in(
    running: list[tuple[str, int, int]],
    waiting: list[tuple[str, int]],
    free: int,
    size: int,
    budget: int,
    places: int,
) -> Scheduler:
    """The course's scheduler in that state, without a prefix cache."""
    used = sum(-(-computed // size) for _, _, computed in running)
    blocks = BlockManager(free + used, size, prefix_cache=False)
    scheduler = Scheduler(blocks, budget, places)
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
    step = scheduler_in(*inputs.values()).schedule()
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
