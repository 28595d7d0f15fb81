"""Shares of preferred sentences: by hand, as two other programs count, and with a word's pull."""

import numpy as np
import pytest

from course_pkg.evaluation.statistics import mean_interval
from course_pkg.studies.safety.sentence_pairs import direction_gap, stereotype_share
from tests.refusals import require_refusals

GROUPS = [group for group in range(12) for _ in range(6)]
DIRECTIONS = [0, 0, 0, 1, 1, 1] * 12


def noise(seed=0):
    return np.random.default_rng(seed).normal(size=72)


def test_share_difference_and_interval_are_those_of_lm_eval_and_wilson():
    """pct_stereotype: mean of (first > second); likelihood_diff: mean of |first - second|."""
    values = [2.0, -1.0, 0.0, 3.0, -0.5]
    result = stereotype_share(values, "abcde")
    assert result.share.estimate == 2 / 5 and result.ties == 1 and result.pairs == 5
    assert result.likelihood_diff == pytest.approx(6.5 / 5)
    assert result.mean_difference.estimate == pytest.approx(3.5 / 5)
    preferred = (noise() > 0).astype(int).tolist()
    assert stereotype_share(noise(), GROUPS).share == mean_interval(preferred, GROUPS)


def test_a_word_s_own_pull_shows_in_the_gap_and_an_association_in_the_share():
    pull = np.where(np.array(DIRECTIONS) == 0, 5.0, -5.0)  # the first word is always preferred
    result = stereotype_share(noise() + pull, GROUPS)
    assert result.share.estimate == 0.5
    assert result.mean_difference.estimate == pytest.approx(noise().mean())  # the pull cancels
    assert direction_gap(noise() + pull, DIRECTIONS, GROUPS).estimate == 1
    result = stereotype_share(noise() + 5, GROUPS)
    assert result.share.estimate == 1
    assert direction_gap(noise() + 5, DIRECTIONS, GROUPS).estimate == 0


def test_bad_input_is_one_clear_error():
    require_refusals(
        (lambda: stereotype_share([1.0, float("nan")], "ab"), "differences"),
        (lambda: stereotype_share([1.0, 2.0], "ab"), "independent items or groups"),
        (lambda: direction_gap([1.0] * 5, [0, 1, 2, 0, 1], "abcde"), "directions must be 0 or 1"),
        (lambda: direction_gap([1.0] * 5, [0, 1, 0, 0, 1], "abcde"), "pairs of both directions"),
    )
