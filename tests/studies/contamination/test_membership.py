"""Scores of single texts, ROC curves, and the exposure of canaries."""

import numpy as np
import pytest
from scipy import stats

from course_pkg.studies.contamination.membership import exposure, min_k_score, roc
from tests.refusals import require_refusals


def test_min_k_takes_so_many_of_ten_tokens():
    for share, count in ((0.2, 2), (0.29, 2), (0.3, 3), (0.05, 1), (1, 10)):
        values = [-float(number) for number in range(10)]
        assert min_k_score(values, share) == np.mean(sorted(values)[:count])


def test_the_area_of_a_curve_is_the_share_of_ordered_pairs_and_it_is_read_at_a_rate():
    generator = np.random.default_rng(1)
    members = generator.normal(0.7, 1, 23).round(1)
    others = generator.normal(0, 1, 31).round(1)
    expected = stats.mannwhitneyu(members, others).statistic / (23 * 31)
    curve = roc(members, others)
    assert curve.area == pytest.approx(expected, abs=1e-12)
    assert curve.true_positives[-1] == curve.false_positives[-1] == 1
    curve = roc(members=[5.0, 4.0, 1.0], others=[4.5, 3.0, 2.0, 0.0])
    assert [curve.found(rate) for rate in (0, 0.25, 0.75)] == [1 / 3, 2 / 3, 1]
    with pytest.raises(ValueError):
        curve.found(1.5)


def test_exposure_is_that_of_the_rank_and_equal_scores_rank_before_the_secret():
    scores = [-float(number) for number in range(1024)]
    assert exposure(scores, 0).bits == 10
    assert exposure(scores, 1023).bits == 0
    assert exposure(scores, 3) == exposure(scores[::-1], 1020)
    assert exposure(scores, 3).p_value == 4 / 1024
    assert exposure([-1.0] * 8, 5).rank == 8


def test_bad_input_is_one_clear_error():
    scores = [-1.0, -2.0, -3.0, -4.0]
    require_refusals(
        (lambda: min_k_score([], 0.2), "log_probs"),
        (lambda: min_k_score([-1.0], 0), "share"),
        (lambda: min_k_score([-1.0], 1.2), "share"),
        (lambda: min_k_score([float("nan")], 0.2), "log_probs"),
        (lambda: exposure(scores, -1), "inserted"),
        (lambda: exposure(scores, 4), "inserted"),
        (lambda: exposure(scores, 1.0), "inserted"),
    )
