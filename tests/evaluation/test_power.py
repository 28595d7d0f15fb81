"""How many items: by hand, against exact power, and by simulation of the tests themselves."""

import numpy as np
import pytest
from scipy import stats

from course_pkg.evaluation.comparison import compare_runs, mcnemar_exact
from course_pkg.evaluation.power import (
    detectable_difference,
    items_needed,
    paired_variance,
    power_of,
    unpaired_variance,
)


def test_items_by_hand():
    # (1.96 + 0.8416)² = 7.849; · (0.24 + 0.2275) / 0.0025 = 1467.8; · (0.15 - 0.0025) / 0.0025
    # = 463.1.
    assert items_needed(0.05, unpaired_variance(0.60, 0.65)) == 1468
    assert items_needed(-0.05, unpaired_variance(0.65, 0.60)) == 1468
    assert items_needed(0.05, paired_variance(0.05, 0.15)) == 464


def test_the_paired_variance_is_that_of_the_differences():
    scores = np.array([1] * 12 + [-1] * 5 + [0] * 83)
    assert paired_variance(0.07, 0.17) == pytest.approx(scores.var(), rel=1e-12)


def test_independent_runs_gain_nothing_from_pairing():
    a = 0.6
    b = 0.65
    disagreement = a * (1 - b) + b * (1 - a)
    assert paired_variance(b - a, disagreement) == pytest.approx(unpaired_variance(a, b))


def test_half_the_difference_takes_four_times_the_items():
    assert items_needed(0.05, 0.2) == pytest.approx(4 * items_needed(0.1, 0.2), abs=4)


def test_power_items_and_difference_are_inverses():
    items = items_needed(0.04, 0.2, power=0.9, alpha=0.01)
    assert power_of(items, 0.04, 0.2, alpha=0.01) == pytest.approx(0.9, abs=1e-3)
    assert power_of(items - 1, 0.04, 0.2, alpha=0.01) < 0.9
    found = detectable_difference(items, 0.2, power=0.9, alpha=0.01)
    assert found == pytest.approx(0.04, rel=1e-3)
    assert power_of(100, 0.0, 0.2) == pytest.approx(0.025)


def mcnemar_power(items, won, lost):
    """Exact: the runs disagree on some items, and the system wins so many of these."""
    power = 0.0
    for disagreements in range(items + 1):
        weight = stats.binom.pmf(disagreements, items, won + lost)
        if weight < 1e-6:
            continue
        wins = np.arange(disagreements // 2 + 1, disagreements + 1)
        found = [mcnemar_exact(int(win), int(disagreements - win)) <= 0.05 for win in wins]
        power += weight * stats.binom.pmf(wins, disagreements, won / (won + lost))[found].sum()
    return power


@pytest.mark.parametrize(("won", "lost"), [(0.2, 0.05), (0.1, 0.05)])
def test_mcnemars_test_needs_2_over_the_difference_items_more(won, lost):
    items = items_needed(won - lost, paired_variance(won - lost, won + lost))
    assert 0.72 < mcnemar_power(items, won, lost) < 0.79
    more = items + round(2 / (won - lost))
    assert mcnemar_power(more, won, lost) == pytest.approx(0.8, abs=0.01)


def test_a_paired_t_test_has_the_stated_power():
    rng = np.random.default_rng(0)
    items = items_needed(0.3, 1.5)
    found = 0
    for _ in range(300):
        baseline = rng.normal(0, 2, items)
        system = baseline + rng.normal(0.3, np.sqrt(1.5), items)
        found += compare_runs(baseline, system).difference.low > 0
    assert found / 300 == pytest.approx(0.8, abs=0.09)  # 4 standard errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: items_needed(0.0, 0.2), "the absolute difference must be above 0"),
        (lambda: items_needed(0.1, 0.0), "variance must be above 0"),
        (lambda: items_needed(0.1, 0.2, power=80), "power must be above 0 and below 1"),
        (lambda: items_needed(0.1, 0.2, alpha=0), "alpha must be above 0 and below 1"),
        (lambda: unpaired_variance(60, 65), "baseline must be at least 0 and below 1"),
        (lambda: paired_variance(0.2, 0.1), "disagreement is 0.1, but a difference of 0.2"),
        (lambda: power_of(0, 0.1, 0.2), "items must be an integer of at least 1"),
        (lambda: detectable_difference(100, -1.0), "variance must be above 0"),
    ],
)
def test_invalid_arguments_are_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
