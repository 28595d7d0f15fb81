"""Normal, Student's t and binomial: equal to scipy's."""

import numpy as np
import pytest
from scipy import stats

from course_pkg.evaluation.distributions import (
    binomial_probabilities,
    normal_quantile,
    t_probability,
    t_quantile,
)
from tests.refusals import require_refusals


def test_normal_and_t_are_those_of_scipy_for_even_and_odd_degrees_of_freedom():
    for freedom in (1, 2, 3, 4, 5, 9, 10, 99, 100, 1001, 14041):
        # A sum of freedom / 2 terms, each with a relative error of a few 1e-16.
        for value in (0.0, 0.1, 1.0, 2.0, 5.0, 30.0):
            expected = 1 - 2 * stats.t.sf(value, freedom)
            assert t_probability(value, freedom) == pytest.approx(expected, abs=1e-11)
        for level in (0.5, 0.95, 0.999):
            expected = stats.t.ppf((1 + level) / 2, freedom)
            assert t_quantile(freedom, level) == pytest.approx(expected, rel=1e-9)
    for level in (0.01, 0.5, 0.9, 0.95, 0.999):
        assert normal_quantile(level) == pytest.approx(stats.norm.ppf((1 + level) / 2), rel=1e-12)


def test_binomial_probabilities_are_those_of_scipy_and_sum_to_1():
    for trials in (1, 2, 97, 1023):
        shares = np.array([0.0, 0.003, 0.5, 0.97, 1.0])
        found = binomial_probabilities(trials, shares)
        expected = stats.binom.pmf(np.arange(trials + 1), trials, shares[:, None])
        assert found == pytest.approx(expected, abs=1e-12)
        assert found.sum(axis=1) == pytest.approx(1, abs=1e-11)
        assert np.array_equal(binomial_probabilities(trials, 0.5), found[2])


def test_invalid_arguments_are_errors():
    require_refusals(
        (lambda: normal_quantile(95), "level must be above 0 and below 1, got 95"),
        (lambda: t_quantile(0, 0.95), "freedom must be an integer of at least 1"),
        (lambda: binomial_probabilities(3, 1.5), r"probability must be in \[0, 1\]"),
    )
