"""The bootstrap: known distributions of its draws, and equality with the course's other ones."""

import numpy as np
import pytest

from course_pkg.evaluation.statistics import standard_error
from course_pkg.studies.likelihood_and_generation.intervals import (
    bootstrap_draws,
    bootstrap_interval,
)
from course_pkg.studies.scheduling.simulation import bootstrap
from tests.refusals import require_refusals

SCORES = np.random.default_rng(0).gamma(2.0, size=40)


def mean(drawn):
    return SCORES[drawn].mean()


def test_of_a_mean_it_is_the_interval_of_the_serving_simulator():
    expected = bootstrap(SCORES.tolist(), samples=500, seed=3)
    found = bootstrap_interval(mean, 40, samples=500, seed=3)
    numbers = found.estimate, found.low, found.high
    assert numbers == pytest.approx((expected.mean, expected.low, expected.high), rel=1e-12)


def test_the_draws_of_a_mean_spread_as_the_standard_error_says():
    # The bootstrap divides by n, not n - 1. 4000 draws know a spread to 1.1%; 4 of these are 5%.
    draws = bootstrap_draws(mean, 40, samples=4000)
    assert draws.std() == pytest.approx(standard_error(SCORES) * np.sqrt(39 / 40), rel=0.05)


def test_groups_are_drawn_whole_and_spread_as_the_clustered_error_says():
    groups = np.repeat(np.arange(10), 4)
    sizes = set()

    def statistic(drawn):
        sizes.add(len(drawn))
        for start in range(0, 40, 4):
            assert len(set(groups[drawn[start : start + 4]])) == 1
        return SCORES[drawn].mean()

    draws = bootstrap_draws(statistic, 40, groups=groups.tolist(), samples=4000)
    assert sizes == {40}
    expected = standard_error(SCORES, groups) * np.sqrt(9 / 10)
    assert draws.std() == pytest.approx(expected, rel=0.05)


def test_the_same_seed_gives_the_same_interval():
    assert bootstrap_interval(mean, 40, seed=1) == bootstrap_interval(mean, 40, seed=1)
    assert bootstrap_interval(mean, 40, seed=1) != bootstrap_interval(mean, 40, seed=2)


def test_invalid_arguments_are_errors():
    require_refusals(
        (lambda: bootstrap_interval(mean, 4), "4 independent items or groups: give 5"),
        (lambda: bootstrap_interval(mean, 40, groups="ab" * 20), "2 independent items or groups"),
        (lambda: bootstrap_interval(mean, 40, level=0.0), "level must be above 0"),
        (lambda: bootstrap_draws(lambda drawn: np.nan, 40), "the statistic is NaN or infinite"),
    )
