"""Error bars: identities, scipy's numbers, cases by hand; their coverage is in test_coverage.py."""

import math

import numpy as np
import pytest
from scipy import stats

from course_pkg.evaluation.statistics import (
    Interval,
    mean_interval,
    normal_interval,
    standard_error,
    t_interval,
    wilson_interval,
)
from course_pkg.metrics.paired_loss import QUANTILE, loss_change


def random_scores(seed, items=60):
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 12, items)
    return rng.normal(groups / 3, 1.0), groups.tolist()


def test_the_standard_error_is_that_of_scipy():
    scores, _ = random_scores(0)
    assert standard_error(scores) == pytest.approx(stats.sem(scores), rel=1e-12)


def test_groups_of_one_item_each_are_independent_items():
    scores, _ = random_scores(1)
    assert standard_error(scores, range(60)) == pytest.approx(standard_error(scores), rel=1e-12)


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


def test_answering_each_item_k_times_alike_adds_nothing():
    scores, _ = random_scores(3)
    repeated = np.repeat(scores, 4)
    items = np.repeat(np.arange(60), 4)
    assert standard_error(repeated, items) == pytest.approx(standard_error(scores), rel=1e-12)
    assert standard_error(repeated) < 0.52 * standard_error(scores)  # about half: the mistake


def test_the_clustered_error_is_that_of_a_loss_per_token_with_texts_as_groups():
    scores, groups = random_scores(4)
    names = sorted(set(groups))
    sums = [float(scores[np.array(groups) == name].sum()) for name in names]
    sizes = [groups.count(name) for name in names]
    change = loss_change(sums, [0.0] * len(sums), sizes)
    assert change.nats == pytest.approx(scores.mean(), rel=1e-12)
    assert change.margin / QUANTILE == pytest.approx(standard_error(scores, groups), rel=1e-12)


def test_names_of_groups_and_order_of_items_do_not_matter():
    scores, groups = random_scores(5)
    names = [f"text {group}" for group in groups]
    order = np.random.default_rng(0).permutation(60)
    moved = standard_error(scores[order], [names[i] for i in order])
    assert moved == pytest.approx(standard_error(scores, groups), rel=1e-12)


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
@pytest.mark.parametrize(("correct", "total"), [(0, 1), (0, 9), (3, 7), (97, 100), (1023, 1023)])
def test_wilsons_interval_is_that_of_scipy(correct, total, level):
    expected = stats.binomtest(correct, total).proportion_ci(level, method="wilson")
    found = wilson_interval(correct, total, level)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert found.estimate == correct / total and found.level == level
    assert 0 <= found.low <= found.estimate <= found.high <= 1


def test_wilsons_bounds_are_the_shares_that_a_z_test_just_accepts():
    interval = wilson_interval(13, 40)
    for share in (interval.low, interval.high):
        z = abs(13 / 40 - share) / math.sqrt(share * (1 - share) / 40)
        assert z == pytest.approx(1.959964, abs=1e-6)


def test_a_t_interval_is_that_of_scipy():
    scores, groups = random_scores(6)
    low, high = stats.t.interval(0.95, 59, scores.mean(), stats.sem(scores))
    found = t_interval(scores)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)
    error = standard_error(scores, groups)
    low, high = stats.t.interval(0.95, len(set(groups)) - 1, scores.mean(), error)
    found = t_interval(scores, groups)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)


def test_the_interval_to_report_is_wilsons_for_right_or_wrong_and_t_for_other_scores():
    assert mean_interval([True, False, True]) == wilson_interval(2, 3)
    scores, groups = random_scores(7)
    assert mean_interval(scores, groups) == t_interval(scores, groups)


def test_groups_widen_the_interval_of_right_or_wrong_scores_as_much_as_the_standard_error():
    # Two equal answers in each of 200 groups: as 200 items, up to t in place of z.
    scores = np.repeat([1, 0, 1, 1], 50)
    doubled = mean_interval(np.repeat(scores, 2), np.repeat(np.arange(200), 2))
    single = wilson_interval(150, 200)
    assert doubled.low == pytest.approx(single.low, abs=1e-3)
    assert doubled.high == pytest.approx(single.high, abs=1e-3)
    ignored = mean_interval(np.repeat(scores, 2))
    assert doubled.high - doubled.low > 1.35 * (ignored.high - ignored.low)


def test_groups_that_are_less_alike_than_chance_do_not_shorten_the_interval():
    scores = [1, 0] * 30  # each group has one of each: the groups' means don't vary at all
    groups = np.repeat(np.arange(30), 2)
    assert standard_error(scores, groups) == 0
    found = mean_interval(scores, groups)
    plain = mean_interval(scores)
    assert found.low < plain.low and found.high > plain.high


def test_if_all_scores_are_the_same_there_are_as_many_items_as_groups():
    found = mean_interval([1] * 60, np.repeat(np.arange(20), 3))
    square = stats.t.ppf(0.975, 19) ** 2
    assert found.high == 1 and found.low == pytest.approx(20 / (20 + square), rel=1e-9)


def test_the_normal_interval_has_no_width_if_all_answers_are_right():
    assert normal_interval([1] * 30) == Interval(1.0, 1.0, 1.0, 0.95)
    assert mean_interval([1] * 30).low < 0.9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: standard_error([1.0]), r"scores has shape \(1,\); give a list of 2 or more"),
        (lambda: standard_error([[1, 0], [0, 1]]), r"shape \(2, 2\)"),
        (lambda: standard_error([1, math.nan]), r"scores\[1\] is nan"),
        (lambda: standard_error([1, 0, 1], "ab"), "3 scores, but 2 groups"),
        (lambda: standard_error([1, 0, 1], "aaa"), "all items are in one group"),
        (lambda: wilson_interval(5, 4), "5 of 4 answers are correct"),
        (lambda: wilson_interval(-1, 4), "correct must be an integer of at least 0"),
        (lambda: t_interval([0.1, 0.2, 0.3]), "3 independent items or groups: give 5"),
        (lambda: mean_interval([1, 0] * 8, "aabb" * 4), "2 independent items or groups"),
        (lambda: mean_interval([1, 0], level=95), "level must be above 0 and below 1"),
    ],
)
def test_what_no_interval_can_be_computed_from_is_an_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
