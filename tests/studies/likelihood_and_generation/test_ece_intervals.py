"""The bias of a calibration error, the bootstrap that fails, and the interval that covers."""

import math

import numpy as np
import pytest

from course_pkg.studies.likelihood_and_generation.confidence import calibrated_ece, ece_interval
from tests.refusals import require_refusals


def draw(items, excess, rng):
    """Confidences, and answers that are right less often by `excess` of what is above 0.25."""
    confidences = 0.25 + 0.75 * rng.beta(1.5, 1.2, items)
    true = confidences - excess * (confidences - 0.25)
    return confidences, rng.random(items) < true


def true_ece(excess):
    rng = np.random.default_rng(0)
    confidences, _ = draw(200_000, excess, rng)
    gaps = excess * (confidences - 0.25)  # of one sign: bins don't cancel any
    return float(gaps.mean())


def test_a_calibrated_models_error_is_what_the_half_normal_mean_says_and_falls_with_sqrt_n():
    rng = np.random.default_rng(1)
    means = []
    for items in (300, 1200):
        confidences, _ = draw(items, 0.0, rng)
        found = calibrated_ece(confidences, 10, "mass").mean()
        spread = np.sqrt(confidences * (1 - confidences))
        expected = math.sqrt(2 * 10 / (math.pi * items)) * spread.mean()
        assert found == pytest.approx(expected, rel=0.05)
        means.append(found)
    assert means[0] > 0.055 and means[0] == pytest.approx(2 * means[1], rel=0.06)


@pytest.mark.parametrize(
    ("items", "excess"), [(60, 0.3), pytest.param(300, 0.0, marks=pytest.mark.exhaustive)]
)
def test_the_interval_covers_the_true_error(items, excess):
    rng = np.random.default_rng(5)
    truth = true_ece(excess)
    covered = 0
    for seed in range(40):
        answers = draw(items, excess, rng)
        covered += truth in ece_interval(*answers, 10, "mass", samples=100, seed=seed)
    assert covered >= 33  # 0.95 · 40 = 38, less 3.6 standard errors


def test_intervals_of_one_bin_and_of_errors_that_are_small_by_luck():
    # |accuracy - confidence| with a true gap of 0.2 and n = 1000: 0.2 ± 1.96 · sqrt(.25/1000).
    confidences = np.full(1000, 0.7)
    correct = np.arange(1000) % 2
    found = ece_interval(confidences, correct, 1, samples=4000)
    assert found.estimate == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.169, 0.231), abs=0.003)
    found = ece_interval([1.0] * 30, [1] * 30)  # as 30 of 30: Wilson's interval goes down to 0.886
    assert (found.estimate, found.low) == (0, 0) and 0.05 < found.high < 0.2
    found = ece_interval([0.6] * 100, [1] * 60 + [0] * 40)
    assert found.low == 0 and 0.06 < found.high < 0.2


def test_invalid_arguments_are_errors():
    require_refusals(
        (lambda: calibrated_ece([1.2]), r"confidences\[0\] is 1.2"),
        (lambda: ece_interval([0.5], [1], level=1.0), "level must be above 0 and below 1"),
        (lambda: ece_interval([0.5, 0.6], [1]), "2 confidences, 1 answers"),
    )
