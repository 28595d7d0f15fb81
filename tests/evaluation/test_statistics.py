import math

import numpy as np
import pytest
from scipy import stats

from course_pkg.evaluation.statistics import (
    binomial_probabilities,
    mean_interval,
    standard_error,
    t_interval,
    t_quantile,
    t_tails,
    wilson_interval,
)
from tests.refusals import require_refusals


def random_scores(seed, items=60):
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 12, items)
    return rng.normal(groups / 3, 1.0), groups.tolist()


def test_the_clustered_error_is_the_double_sum_over_pairs_of_items_in_one_group():
    scores, groups = random_scores(2)
    mean = scores.mean()
    total = 0.0
    for x, of_x in zip(scores, groups, strict=True):
        for y, of_y in zip(scores, groups, strict=True):
            if of_x == of_y:
                total += (x - mean) * (y - mean)
    count = len(set(groups))
    expected = math.sqrt(count / (count - 1) * total) / len(scores)
    assert standard_error(scores, groups) == pytest.approx(expected, rel=1e-12)


def test_wilsons_interval_is_that_of_scipy():
    for correct, total in ((0, 1), (0, 9), (3, 7), (97, 100), (1023, 1023)):
        for level in (0.8, 0.95, 0.99):
            expected = stats.binomtest(correct, total).proportion_ci(level, method="wilson")
            interval = wilson_interval(correct, total, level)
            assert (interval.low, interval.high) == pytest.approx(
                (expected.low, expected.high), abs=1e-12
            )
            assert interval.estimate == correct / total and interval.level == level
            assert 0 <= interval.low <= interval.estimate <= interval.high <= 1


def test_a_t_interval_is_that_of_scipy():
    scores, groups = random_scores(6)
    low, high = stats.t.interval(0.95, 59, scores.mean(), stats.sem(scores))
    interval = t_interval(scores)
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-9)
    error = standard_error(scores, groups)
    low, high = stats.t.interval(0.95, len(set(groups)) - 1, scores.mean(), error)
    interval = t_interval(scores, groups)
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-9)


def test_the_interval_to_report_is_wilsons_for_right_or_wrong_and_t_for_other_scores():
    assert mean_interval([True, False, True]) == wilson_interval(2, 3)
    scores, groups = random_scores(7)
    assert mean_interval(scores, groups) == t_interval(scores, groups)


def test_groups_less_alike_than_chance_do_not_shorten_the_interval_and_equal_scores_count_groups():
    scores = [1, 0] * 30  # each group has one of each: the groups' means don't vary at all
    groups = np.repeat(np.arange(30), 2)
    assert standard_error(scores, groups) == 0
    grouped = mean_interval(scores, groups)
    plain = mean_interval(scores)
    assert grouped.low < plain.low and grouped.high > plain.high
    grouped = mean_interval([1] * 60, np.repeat(np.arange(20), 3))
    square = stats.t.ppf(0.975, 19) ** 2
    assert grouped.high == 1 and grouped.low == pytest.approx(20 / (20 + square), rel=1e-9)


def test_what_no_interval_can_be_computed_from_is_an_error():
    require_refusals(
        (lambda: standard_error([1.0]), r"scores has shape \(1,\); give a list of 2 or more"),
        (lambda: standard_error([[1, 0], [0, 1]]), r"shape \(2, 2\)"),
        (lambda: standard_error([1, math.nan]), r"scores\[1\] is nan"),
        (lambda: standard_error([1, 0, 1], "ab"), "3 scores, but 2 groups"),
        (lambda: standard_error([1, 0, 1], "aaa"), "all items are in one group"),
        (lambda: wilson_interval(5, 4), "5 of 4 answers are correct"),
        (lambda: t_interval([0.1, 0.2, 0.3]), "3 independent items or groups: give 5"),
        (lambda: mean_interval([1, 0] * 8, "aabb" * 4), "2 independent items or groups"),
        (lambda: mean_interval([1, 0], level=95), "level must be above 0 and below 1"),
        (lambda: t_quantile(0, 0.95), "freedom must be an integer of at least 1"),
        (lambda: t_tails(-1.0, 3), "value must be at least 0"),
        (lambda: binomial_probabilities(3, 1.5), r"probability must be in \[0, 1\]"),
    )
