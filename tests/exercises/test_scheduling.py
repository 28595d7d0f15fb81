"""`scheduling`: model answers against the course's server."""

import itertools
import math
import random

import numpy as np

from course_pkg.grading.check import variant
from course_pkg.grading.checks.scheduling import cases
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.scheduler import Scheduler
from course_pkg.serving.sequence import Sequence
from tests.exercises.assignments import model_answers

MODEL = model_answers("scheduling")


def test_the_step_is_that_of_the_scheduler_in_every_step_of_whole_runs():
    rng = random.Random(0)
    preempted = 0
    for _ in range(40):
        blocks = BlockManager(rng.randint(8, 20), 4, prefix_cache=False)
        places = rng.randint(2, 5)
        scheduler = Scheduler(blocks, rng.randint(places, 12), places)
        for number in range(8):
            new = rng.randint(1, 12)
            scheduler.add(Sequence(str(number), [0] * rng.randint(1, 20), max_new_tokens=new))
        while scheduler.has_work:
            running = [(s.id, len(s.tokens), blocks.stored(s)) for s in scheduler.running]
            waiting = [(s.id, len(s.tokens)) for s in scheduler.waiting]
            state = running, waiting, blocks.pool.num_free, 4, scheduler.token_budget, places
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
        batching = {"arrivals": arrivals, "answers": answers}
        batching |= {"places": rng.randint(1, 6), "continuous": number % 2 == 0}
        assert MODEL["finish_times"](*batching.values()) == cases.batching_expected(batching)
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
    assert list(case.values()) == [48, [1, 1, 30, 1], [25, 40], [5, 2, 3, 7, 4]]
    right = cases.by_hand_expected(case)
    assert right["first"] == [1, 1, 30, 1, 48 - 33, 0]
    assert right["second"] == [1, 1, 1, 1, 25 - 15, 48 - 4 - 10]
    assert right["static"] == [5, 5, 5 + 7, 5 + 7, 12 + 4]
    # the first place: 0–5, the fourth 5–12; the second place: 0–2, the third 2–5, the fifth 5–9
    assert right["continuous"] == [5, 2, 5, 12, 9]
