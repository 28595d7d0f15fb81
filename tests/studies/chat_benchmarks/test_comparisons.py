"""Win rates, and what a judge's comparisons say about the judge."""

import math

import numpy as np
import pytest

from course_pkg.evaluation.statistics import mean_interval
from course_pkg.studies.chat_benchmarks.comparisons import Comparison, judge_bias, win_rate
from course_pkg.studies.chat_benchmarks.logistic import sigmoid
from course_pkg.studies.chat_benchmarks.simulated_judge import (
    SimulatedJudge,
    simulate_comparisons,
    true_win_rate,
)
from tests.refusals import require_refusals


def test_a_win_rate_is_the_mean_with_its_interval_by_groups():
    outcomes = [1, 0, 1, 1, 0.5, 1, 0, 1, 1, 1]
    groups = "aabbccddee"
    found = win_rate(outcomes, groups).interval
    wanted = mean_interval(outcomes, groups)
    assert (found.estimate, found.low) == (wanted.estimate, wanted.low)
    assert found.high == 1.0 < wanted.high  # a win rate has no more to give


def test_failures_are_counted_and_bound_the_win_rate():
    result = win_rate([1, 1, 0, None, 1, 0, None, 1])
    assert (result.wins, result.ties, result.losses, result.failed) == (4, 0, 2, 2)
    assert result.interval.estimate == pytest.approx(4 / 6)
    assert result.bounds == pytest.approx((4 / 8, 6 / 8))


def test_what_no_win_rate_can_be_computed_from_is_refused():
    require_refusals(
        (lambda: win_rate([1, 1.2, 0, 0, 1, 1]), r"outcomes\[1\]"),
        (lambda: win_rate([1, math.nan, 0, 0, 1, 1]), r"outcomes\[1\]"),
        (lambda: win_rate([1, 0, 1, 0, 1, 1], "aabbc"), "6 outcomes, but 5 groups"),
        (lambda: win_rate([1, None, 0.5, 1]), "3 independent items"),
    )


def comparison(number, a, b, sizes=(9, 5)):
    return Comparison(f"q{number}", 1, "x", "y", a, b, *sizes)


def test_bias_of_a_judge_in_first_place_and_for_the_longer_answer_by_hand():
    found = judge_bias([comparison(n, 1.0, 0.0) for n in range(6)])
    assert found.flips.estimate == found.first_place.estimate == 1
    assert found.longer is None  # over both orders it prefers none
    sizes = [(9, 5), (5, 9), (7, 7), (9, 5), (9, 5), (5, 9), (9, 5)]
    sides = [(1, 1), (0, 0), (1, 1), (0.6, 0.6), (0, 0), (0.4, 0.3), (1.0, 0.2)]
    rows = zip(sides, sizes, strict=True)
    found = judge_bias([comparison(n, *side, size) for n, (side, size) in enumerate(rows)])
    assert found.longer.estimate == pytest.approx(5 / 6)
    lost = [comparison(9, None, 1.0), comparison(10, 0.0, None)]
    assert judge_bias([comparison(n, 1.0, 1.0) for n in range(6)] + lost).failed == 2


def test_a_simulated_judge_has_the_position_bias_and_the_length_effect_that_it_was_given():
    judge = SimulatedJudge(position=1.0)
    found = judge_bias(simulate_comparisons({"x": 0.0, "y": 0.0}, judge, questions=2000))
    assert found.first_place.estimate == pytest.approx(sigmoid(1.0), abs=0.02)
    assert found.flips.estimate == pytest.approx(sigmoid(1.0) ** 2 + sigmoid(-1.0) ** 2, abs=0.03)
    judge = SimulatedJudge(length=2.0)
    found = judge_bias(simulate_comparisons({"x": 0.0, "y": 0.0}, judge, questions=2000))
    assert found.longer.low > 0.7


def test_a_simulated_win_rate_is_the_true_one_also_with_a_spread():
    judge = SimulatedJudge(spread=1.5)
    found = simulate_comparisons({"x": 1.0, "y": 0.0}, judge, questions=6000, turns=1, seed=1)
    mean = np.mean([each.outcome() for each in found])
    assert mean == pytest.approx(true_win_rate(1.0, 1.5), abs=0.015)  # 3 standard errors
    assert true_win_rate(0.0, 2.0) == pytest.approx(0.5)
