"""Which intervals cover: exact for independent items, simulated for groups."""

import numpy as np
import pytest
from scipy import stats

from course_pkg.evaluation.statistics import mean_interval, normal_interval, wilson_interval
from course_pkg.studies.likelihood_and_generation.intervals import (
    binomial_coverage,
    bootstrap_interval,
    clopper_pearson,
    clustered_coverage,
    normal,
    percentile_bootstrap,
)
from tests.refusals import require_refusals

SHARES = (np.arange(49) + 0.5) / 49  # none is a multiple of 1/items, where a bound may lie


def test_coverage_is_what_a_simulation_finds():
    rng = np.random.default_rng(0)
    correct = rng.binomial(25, 0.8, 20_000)
    found = [0.8 in wilson_interval(int(k), 25) for k in range(26)]
    expected = np.array(found)[correct].mean()
    assert binomial_coverage(wilson_interval, 25, [0.8])[0] == pytest.approx(expected, abs=0.007)


def test_wilsons_interval_covers_on_average_and_a_normal_one_and_the_bootstrap_do_not():
    items = 30

    def average(interval):
        return binomial_coverage(interval, items, SHARES).mean()

    assert average(wilson_interval) == pytest.approx(0.95, abs=0.01)
    assert average(normal) < 0.94
    assert average(percentile_bootstrap) < 0.94
    assert binomial_coverage(clopper_pearson, items, SHARES).min() >= 0.95


@pytest.mark.parametrize(("correct", "total"), [(0, 12), (5, 12), (12, 12), (97, 100)])
def test_the_compared_intervals_are_what_their_names_say(correct, total):
    expected = stats.binomtest(correct, total).proportion_ci(method="exact")
    found = clopper_pearson(correct, total)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-8)
    scores = np.array([1.0] * correct + [0.0] * (total - correct))
    plain = normal_interval(scores)
    assert normal(correct, total).high == pytest.approx(plain.high, rel=1e-12)
    drawn = bootstrap_interval(lambda picks: scores[picks].mean(), total, samples=4000)
    exact = percentile_bootstrap(correct, total)
    step = 1.0001 / total  # the draws' quantiles may fall beside the distribution's
    assert (exact.low, exact.high) == pytest.approx((drawn.low, drawn.high), abs=step)


def test_intervals_of_grouped_scores_cover_and_those_that_ignore_the_groups_do_not():
    setting = {"groups": 20, "size": 5, "probability": 0.8, "correlation": 0.5}
    ours = clustered_coverage(mean_interval, **setting, simulations=400)
    ignoring = clustered_coverage(
        lambda scores, _: mean_interval(scores), **setting, simulations=400
    )
    assert ours > 0.917  # 0.95 less 3 standard errors
    assert ignoring < 0.91


def test_invalid_arguments_are_errors():
    require_refusals(
        (lambda: binomial_coverage(normal, 10, [1.2]), r"probability must be in \[0, 1\]"),
        (lambda: normal(1, 1), "total must be an integer of at least 2"),
        (
            lambda: clustered_coverage(
                mean_interval, groups=9, size=0, probability=0.5, correlation=0.1
            ),
            "size must be an integer",
        ),
        (
            lambda: clustered_coverage(
                mean_interval, groups=9, size=2, probability=0.5, correlation=0.0
            ),
            "correlation must be above 0",
        ),
    )
