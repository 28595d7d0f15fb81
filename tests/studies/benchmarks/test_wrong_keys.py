"""Wrong keys: limits by hand, and a simulation with keys that really are wrong."""

import numpy as np
import pytest

from course_pkg.studies.benchmarks.leaderboard import (
    PairOfScores,
    accuracy_with_wrong_keys,
    pair_with_wrong_keys,
)
from tests.refusals import require_refusals


def test_a_perfect_model_shows_the_share_of_right_keys_and_guessing_stays_guessing():
    for options in (2, 4, 10):
        assert accuracy_with_wrong_keys(1.0, 0.07, options) == pytest.approx(0.93)
        assert accuracy_with_wrong_keys(1 / options, 0.07, options) == pytest.approx(1 / options)
        assert accuracy_with_wrong_keys(0.8, 0.0, options) == 0.8


def test_a_simulation_with_wrong_keys_agrees():
    generator = np.random.default_rng(0)
    items = 400_000
    options = 4
    wrong = 0.2
    # Both right 0.65, only the baseline 0.05, only the system 0.15, none 0.15.
    state = generator.choice(4, size=items, p=[0.65, 0.05, 0.15, 0.15])
    truth = np.zeros(items, int)
    key = np.where(generator.random(items) < wrong, generator.integers(1, options, items), truth)
    errors = generator.integers(1, options, (2, items))
    baseline = np.where((state == 0) | (state == 1), truth, errors[0]) == key
    system = np.where((state == 0) | (state == 2), truth, errors[1]) == key
    seen = pair_with_wrong_keys(PairOfScores(0.7, 0.8, 0.2), wrong, options)
    # Standard errors are below 0.0008: four of them.
    assert seen.baseline == pytest.approx(baseline.mean(), abs=0.003)
    assert seen.system == pytest.approx(system.mean(), abs=0.003)
    assert seen.disagreement == pytest.approx((baseline != system).mean(), abs=0.003)


def test_bad_input_is_one_clear_error():
    require_refusals(
        (lambda: accuracy_with_wrong_keys(1.2, 0.1), r"accuracy must be a share in \[0, 1\]"),
        (lambda: accuracy_with_wrong_keys(0.5, 0.1, 1), "options must be an integer of at least 2"),
        (lambda: PairOfScores(0.7, 0.8, 0.05), "it is from 0.1 to 0.5"),
        (lambda: PairOfScores(0.97, 0.98, 0.2), "it is from 0.01 to 0.05"),
    )
