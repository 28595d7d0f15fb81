"""`scheduling`: percentiles are those of numpy, and how steps are compared."""

import itertools
import random

import numpy as np

from course_pkg.grading.assignments.scheduling import cases
from tests.exercises.assignments import answers_to


def test_percentiles_are_those_of_numpy_unless_it_rounds_a_whole_rank_up():
    percentile = answers_to("scheduling")["percentile"]
    values = random.Random(2).sample(range(1000), 60)
    for number, p in itertools.product(range(1, 61), range(1, 101)):
        expected = cases.percentile_expected({"values": values[:number], "p": p})
        assert percentile(values[:number], p) == expected
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
