"""The bootstrap, coverage of intervals, and how they are written."""

import numpy as np
import pytest

from course_pkg.evaluation.statistics import (
    Interval,
    mean_interval,
    normal_interval,
    standard_error,
    wilson_interval,
)
from course_pkg.studies.likelihood_and_generation.intervals import (
    binomial_coverage,
    bootstrap_draws,
    bootstrap_interval,
    bootstrap_mean,
    clopper_pearson,
    clustered_coverage,
    normal,
    percent,
    percentile_bootstrap,
    points,
    verdict,
)
from tests.refusals import require_refusals

SCORES = np.random.default_rng(0).gamma(2.0, size=40)


def mean(drawn):
    return SCORES[drawn].mean()


def test_of_a_mean_it_has_the_quantiles_of_drawn_means():
    picks = np.random.default_rng(3).integers(40, size=(500, 40))
    low, high = np.quantile(SCORES[picks].mean(axis=1), [0.025, 0.975])
    found = bootstrap_mean(SCORES.tolist(), samples=500, seed=3)
    numbers = found.estimate, found.low, found.high
    assert numbers == pytest.approx((SCORES.mean(), low, high), rel=1e-12)


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
    setting = {"groups": 9, "size": 2, "probability": 0.5, "correlation": 0.0}
    require_refusals(
        (lambda: bootstrap_interval(mean, 4), "4 independent items or groups: give 5"),
        (lambda: bootstrap_interval(mean, 40, groups="ab" * 20), "2 independent items or groups"),
        (lambda: bootstrap_interval(mean, 40, level=0.0), "level must be above 0"),
        (lambda: bootstrap_draws(lambda drawn: np.nan, 40), "the statistic is NaN or infinite"),
        (lambda: binomial_coverage(normal, 10, [1.2]), r"probability must be in \[0, 1\]"),
        (lambda: normal(1, 1), "total must be an integer of at least 2"),
        (lambda: clustered_coverage(mean_interval, **setting | {"size": 0}), "size must be an int"),
        (lambda: clustered_coverage(mean_interval, **setting), "correlation must be above 0"),
    )


def test_percent_and_points_round_alike_and_points_have_signs():
    assert percent(Interval(0.5, 0.404, 0.596, 0.95)) == "50% [40, 60]"
    assert points(Interval(-0.104, -0.2, 0.004, 0.95)) == "-10 [-20, +0]"


def test_a_difference_is_clear_only_if_its_interval_excludes_0():
    for low, high, said in (
        (0.01, 0.2, "higher"),
        (-0.2, -0.01, "lower"),
        (-0.1, 0.1, "not clearly different"),
        (0.0, 0.1, "not clearly different"),
    ):
        assert verdict(Interval((low + high) / 2, low, high, 0.95)) == said
