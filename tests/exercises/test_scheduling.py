"""`scheduling`: model answers against the course's server, and other right answers."""

import ast
import itertools
import math
import random
import re

import numpy as np
import pytest

from course_pkg.grading.check import variant
from course_pkg.grading.checks.scheduling import cases
from course_pkg.grading.contract import registry
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.scheduler import Scheduler
from course_pkg.serving.sequence import Sequence

from .assignments import SOLUTIONS, notebook, points_lost


def model_answers() -> dict:
    """The functions of the model answers, by name."""
    assignment = registry.load("scheduling")
    names: dict = {}
    for question in assignment.questions.values():
        if question.call:
            exec(f"{assignment.setup}\n{question.answer}", names)
    return names


MODEL = model_answers()


def test_the_examples_of_the_notebook_are_true():
    examples = 0
    for cell in notebook(SOLUTIONS, "scheduling").cells:
        for code in re.findall(r"```python\n(.*?)```", cell.source, re.DOTALL):
            names = dict(MODEL)
            for node in ast.parse(code).body:
                if isinstance(node, ast.Expr):
                    shown = repr(eval(ast.unparse(node), names)).replace("'", '"')
                    assert f"# {shown}" in code, shown
                    examples += 1
                else:
                    exec(ast.unparse(node), names)
    assert examples == 10


def test_the_step_is_that_of_the_scheduler_in_every_step_of_whole_runs():
    rng, preempted = random.Random(0), 0
    for _ in range(40):
        blocks, places = BlockManager(rng.randint(8, 20), 4, prefix_cache=False), rng.randint(2, 5)
        scheduler = Scheduler(blocks, rng.randint(places, 12), places)
        for number in range(8):
            new = rng.randint(1, 12)
            scheduler.add(Sequence(str(number), [0] * rng.randint(1, 20), max_new_tokens=new))
        while scheduler.has_work:
            running = [(s.id, len(s.tokens), blocks.stored(s)) for s in scheduler.running]
            waiting = [(s.id, len(s.tokens)) for s in scheduler.waiting]
            state = running, waiting, blocks.pool.free, 4, scheduler.token_budget, places
            step = scheduler.schedule()
            expected = {s.id: len(tokens) for s, tokens in step.scheduled.items()}
            assert MODEL["schedule"](*state) == (expected, [s.id for s in step.preempted])
            preempted += len(step.preempted)
            scheduler.update(step, {s.id: 1 for s in step.sampling})
    assert preempted > 20


def test_batching_and_queues_are_those_of_the_simulator_with_many_requests():
    rng = random.Random(1)
    for number in range(20):
        arrivals = sorted(rng.randint(0, 200) for _ in range(40))
        answers = [rng.randint(1, 20) for _ in arrivals]
        batching = dict(zip(("arrivals", "answers"), (arrivals, answers), strict=True))
        batching |= {"places": rng.randint(1, 6), "continuous": number % 2 == 0}
        right = cases.batching_expected(batching)
        assert MODEL["finish_times"](*batching.values()) == right
        assert finish_times_step_by_step(*batching.values()) == right
        jobs = [(a, rng.randint(3, 40), n) for a, n in zip(arrivals, answers, strict=True)]
        inputs = {"jobs": jobs, "step": 2, "quantum": 5, "queues": rng.randint(1, 6)}
        inputs["starvation"] = math.inf
        assert MODEL["skip_join_mlfq"](*inputs.values()) == cases.mlfq_expected(inputs)


def test_percentiles_are_those_of_numpy_unless_it_rounds_a_whole_rank_up():
    values = random.Random(2).sample(range(1000), 60)
    for number, p in itertools.product(range(1, 61), range(1, 101)):
        expected = cases.percentile_expected({"values": values[:number], "p": p})
        assert MODEL["percentile"](values[:number], p) == expected
        if number * p % 100:
            assert np.percentile(values[:number], p, method="inverted_cdf") == expected


def finish_times_step_by_step(arrivals, answers, places, continuous):
    """A loop over steps, as the hints say."""
    left, finished = list(answers), [0] * len(answers)
    waiting, batch, now = list(range(len(answers))), [], 0
    while waiting or batch:
        if not batch:
            now = max(now, arrivals[waiting[0]])
        joining = continuous or not batch
        while joining and waiting and len(batch) < places and arrivals[waiting[0]] <= now:
            batch.append(waiting.pop(0))
        now += 1
        for i in batch:
            left[i] -= 1
        done = [i for i in batch if left[i] <= 0]
        if continuous or len(done) == len(batch):
            for i in done:
                finished[i] = now
            batch = [i for i in batch if i not in done]
    return finished


def schedule_with_zeros(running, waiting, free_blocks, block_size, token_budget, places):
    """Every sequence has an entry, and the preempted ones are a tuple."""
    arguments = running, waiting, free_blocks, block_size, token_budget, places
    scheduled, preempted = MODEL["schedule"](*arguments)
    names = [name for name, *_ in [*running, *waiting]]
    return [dict.fromkeys(names, 0) | scheduled, tuple(preempted)]


def mlfq_by_sorting(jobs, step, quantum, queues, starvation):
    """No queues: each job has a level and a place, and the smallest pair runs."""
    now, back = 0, 0
    here, finished = {}, [0] * len(jobs)
    while len(here) < len(jobs) or any(here.values()):
        if not any(here.values()):
            now = max(now, jobs[len(here)][0])
        ran = None
        for _ in range(2):
            while len(here) < len(jobs) and jobs[len(here)][0] <= now:
                arrival, first, tokens = jobs[len(here)]
                level = min(max(0, math.ceil(math.log2(first / quantum) - 1e-9)), queues - 1)
                back += 1
                here[len(here)] = {"at": (level, back), "used": 0, "left": tokens, "since": arrival}
            if ran is not None:
                break
            for job in filter(None, here.values()):
                if job["at"][0] and now - job["since"] >= starvation:
                    back += 1
                    job |= {"at": (0, back), "used": 0}
            number = min((n for n in here if here[n]), key=lambda n: here[n]["at"])
            ran = here[number]
            time = step if ran["left"] < jobs[number][2] else jobs[number][1]
            now += time
            ran |= {"used": ran["used"] + time, "left": ran["left"] - 1, "since": now}
        level = ran["at"][0]
        if ran["used"] >= quantum * 2**level:
            back += 1
            ran |= {"at": (min(level + 1, queues - 1), back), "used": 0}
        if not ran["left"]:
            here[number], finished[number] = None, now
    return finished


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("batching", finish_times_step_by_step),
        ("step", schedule_with_zeros),
        ("mlfq", mlfq_by_sorting),
    ],
)
def test_another_right_answer_keeps_every_point(name, answer):
    assert points_lost("scheduling", name, answer) == 0


def test_a_difference_of_steps_names_the_sequence():
    right = {"a": 1, "b": 4}, ["c"]
    assert cases.step_difference(right, right) is None
    for given, reason in [
        (({"a": 1, "b": 5}, ["c"]), "tokens of 'b': expected 4, but 5 was given"),
        (({"b": 4, "a": True}, ["c"]), "tokens of 'a': expected 1, but True was given"),
        (({"b": 4, "a": 1, "d": 2}, ["c"]), "tokens of 'd': expected 0, but 2 was given"),
        ((right[0], []), "preempted: expected ['c'], but [] was given"),
    ]:
        assert cases.step_difference(right, given) == reason
    for given in ({"a": 1}, None, ([("a", 1)], [])):
        assert cases.step_difference(right, given).startswith("expected a pair (dict of tokens")


def test_the_example_case_worked_by_hand():
    case = variant("scheduling/by-hand")
    assert case == {
        "budget": 48, "running": [1, 1, 30, 1], "waiting": [25, 40], "answers": [5, 2, 3, 7, 4]
    }  # fmt: skip
    assert cases.by_hand_first_expected(case) == [1, 1, 30, 1, 48 - 33, 0]
    assert cases.by_hand_second_expected(case) == [1, 1, 1, 1, 25 - 15, 48 - 4 - 10]
    assert cases.by_hand_static_expected(case) == [5, 5, 5 + 7, 5 + 7, 12 + 4]
    # the first place: 0–5, the fourth 5–12; the second place: 0–2, the third 2–5, the fifth 5–9
    assert cases.by_hand_continuous_expected(case) == [5, 2, 5, 12, 9]
