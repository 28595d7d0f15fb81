import math

import numpy as np
import pytest
from scipy import stats

from course_pkg.evaluation.comparison import (
    compare_runs,
    holm,
    mcnemar_exact,
    paired_share_interval,
)
from course_pkg.evaluation.statistics import standard_error, t_interval
from tests.refusals import require_refusals


def two_runs(seed=0, items=400, shared=0.8):
    """Scores of two runs on items whose difficulty they share."""
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(0, math.sqrt(shared), items)
    noise = rng.normal(0, math.sqrt(1 - shared), (2, items))
    return difficulty + noise[0], difficulty + noise[1] + 0.1


def test_other_scores_get_the_paired_t_test_of_scipy_which_removes_twice_the_covariance():
    baseline, system = two_runs(1)
    result = compare_runs(baseline, system)
    expected = stats.ttest_rel(system, baseline)
    interval = expected.confidence_interval()
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    bounds = (result.difference.low, result.difference.high)
    assert bounds == pytest.approx((interval.low, interval.high), rel=1e-9)
    baseline, system = two_runs()
    result = compare_runs(baseline, system)
    covariance = float(np.cov(baseline, system)[0, 1]) / 400
    expected = result.unpaired_standard_error**2 - 2 * covariance
    assert result.standard_error**2 == pytest.approx(expected, rel=1e-9)
    assert 0.15 < result.variance_ratio < 0.25  # 1 - correlation, which is 0.8


def test_right_or_wrong_scores_count_the_items_on_which_the_runs_disagree():
    baseline = np.array([1] * 60 + [0] * 40)
    system = np.array([1] * 55 + [0] * 5 + [1] * 12 + [0] * 28)
    result = compare_runs(baseline, system)
    assert (result.wins, result.losses, result.items) == (12, 5, 100)
    assert result.p_value == mcnemar_exact(12, 5)
    assert result.difference == paired_share_interval(12, 5, 100)
    assert result.standard_error**2 == pytest.approx((0.17 - 0.07**2) / 99, rel=1e-12)


def test_groups_are_respected():
    baseline, system = two_runs(2)
    groups = np.repeat(np.arange(50), 8)
    result = compare_runs(baseline, system, groups)
    assert result.difference == t_interval(system - baseline, groups)
    assert result.standard_error == standard_error(system - baseline, groups)
    ratio = result.difference.estimate / result.standard_error
    assert result.p_value == pytest.approx(2 * stats.t.sf(abs(ratio), 49), rel=1e-9)
    binary = compare_runs(baseline > 0, system > 0, groups)  # McNemar's would ignore the groups
    assert binary.difference == t_interval((system > 0) * 1.0 - (baseline > 0), groups)


def test_a_run_against_itself_differs_by_nothing():
    for scores in ([1, 0, 1, 1, 0, 1], [0.5, 0.2, 0.3, 0.9, 0.1], [1, 1, 1, 1, 1]):
        result = compare_runs(scores, scores)
        assert (result.difference.estimate, result.p_value, result.wins) == (0, 1, 0)
        assert result.difference.low <= 0 <= result.difference.high
    assert result.variance_ratio == 1  # nothing varies


def test_equal_differences_everywhere_get_a_sign_test():
    for groups, expected in ((None, 0.5**9), ([0, 1, 2, 3, 4] * 2, 0.5**4)):
        result = compare_runs([0.25] * 10, [0.75] * 10, groups)
        interval = result.difference
        assert (interval.low, interval.high, result.p_value) == (0.5, 0.5, expected)


def test_mcnemars_exact_test_is_scipys_binomial_test():
    for wins, losses in ((0, 0), (1, 0), (5, 5), (9, 2), (97, 61), (0, 1100)):
        expected = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
        assert mcnemar_exact(wins, losses) == pytest.approx(expected, rel=1e-9)


def test_the_paired_interval_and_holms_p_values_by_hand():
    # With one win and one loss more: 10/102 and 3/102. Center 7/102 = 0.06863; variance
    # (13/102 - 0.06863²) / 102 = 0.0012033; 1.95996 · 0.034689 = 0.06799.
    interval = paired_share_interval(9, 2, 100)
    assert interval.estimate == 0.07
    assert (interval.low, interval.high) == pytest.approx((0.00064, 0.13662), abs=1e-5)
    assert paired_share_interval(50, 0, 50).high == 1 and paired_share_interval(0, 3, 3).low == -1
    # Sorted: .005 · 4 = .02; .01 · 3 = .03; .03 · 2 = .06; .04 · 1 = .04, but not below .06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.2]) == [0.2]
    assert holm([0.9, 0.8]) == [1, 1]


def test_invalid_arguments_are_errors():
    require_refusals(
        (lambda: compare_runs([1, 0, 1], [1, 0]), "3 scores of the baseline, 2 of the system"),
        (lambda: compare_runs([1, math.inf], [1, 0]), r"baseline\[1\] is inf"),
        (lambda: compare_runs([0.1, 0.2, 0.3], [0.2, 0.2, 0.2]), "3 independent items"),
        (lambda: mcnemar_exact(3.0, 2), "wins must be an integer of at least 0"),
        (lambda: paired_share_interval(6, 5, 10), "6 wins and 5 losses, but 10 items"),
        (lambda: holm([]), "p_values is empty"),
        (lambda: holm([0.5, math.nan]), r"p_values must be in \[0, 1\]"),
    )
