"""How many items: by hand, against exact power, and by simulation of the tests themselves."""

import numpy as np
import pytest
from scipy.stats import norm

from course_pkg.studies.likelihood_and_generation.power import (
    detectable_difference,
    items_needed,
    paired_variance,
    unpaired_variance,
)
from tests.refusals import require_refusals


def test_items_and_variances_by_hand():
    # (1.96 + 0.8416)² = 7.849; · (0.24 + 0.2275) / 0.0025 = 1467.8; · (0.15 - 0.0025) / 0.0025
    # = 463.1.
    assert items_needed(0.05, unpaired_variance(0.60, 0.65)) == 1468
    assert items_needed(-0.05, unpaired_variance(0.65, 0.60)) == 1468
    assert items_needed(0.05, paired_variance(0.05, 0.15)) == 464
    scores = np.array([1] * 12 + [-1] * 5 + [0] * 83)
    assert paired_variance(0.07, 0.17) == pytest.approx(scores.var(), rel=1e-12)


def test_the_power_is_that_of_the_test_and_the_difference_is_its_inverse():
    items = items_needed(0.04, 0.2, power=0.9, alpha=0.01)
    for count, enough in ((items, True), (items - 1, False)):
        power = norm.cdf(0.04 * np.sqrt(count / 0.2) - norm.ppf(1 - 0.01 / 2))
        assert power == pytest.approx(0.9, abs=1e-3) and (power >= 0.9) == enough
    difference = detectable_difference(items, 0.2, power=0.9, alpha=0.01)
    assert difference == pytest.approx(0.04, rel=1e-3)


def test_invalid_arguments_are_errors():
    require_refusals(
        (lambda: items_needed(0.0, 0.2), "the absolute difference must be above 0"),
        (lambda: items_needed(0.1, 0.2, power=80), "power must be above 0 and below 1"),
        (lambda: unpaired_variance(60, 65), "baseline must be at least 0 and below 1"),
        (lambda: paired_variance(0.2, 0.1), "disagreement is 0.1, but a difference of 0.2"),
        (lambda: detectable_difference(0, 0.2), "items must be an integer of at least 1"),
    )
