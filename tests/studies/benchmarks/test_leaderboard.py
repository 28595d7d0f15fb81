"""Ranks, order statistics, win rates that other models change, and wrong keys."""

import math

import numpy as np
import pytest

from course_pkg.studies.benchmarks.leaderboard import (
    PairOfScores,
    accuracy_with_wrong_keys,
    bootstrap_ranks,
    expected_maximum,
    mean_win_rate,
    pair_with_wrong_keys,
    selection_bias,
    simulate_leaderboard,
)
from tests.refusals import require_refusals


def test_a_model_that_is_better_on_every_item_is_always_first_and_equal_ones_share_every_rank():
    scores = np.array([[0, 0, 1, 1, 0], [1, 1, 2, 2, 1]])
    found = bootstrap_ranks(scores, samples=200)
    assert found.first.tolist() == [0, 1]
    assert found.interval() == [(2, 2), (1, 1)]
    scores = np.tile([0, 1, 1, 0, 1, 1], (4, 1))
    found = bootstrap_ranks(scores, samples=4000)
    # A share of 1/4 has a standard error of 0.007: four of them.
    np.testing.assert_allclose(found.shares, 0.25, atol=0.028)
    assert found.interval() == [(1, 4)] * 4


def test_simulated_models_have_their_accuracies_and_find_the_same_items_hard():
    accuracies = [0.3, 0.6, 0.9]
    scores = simulate_leaderboard(accuracies, 40_000)
    # Items vary too: the standard error is about 0.0025.
    np.testing.assert_allclose(scores.mean(axis=1), accuracies, atol=0.01)
    assert np.corrcoef(scores[0], scores[1])[0, 1] > 0.15
    apart = simulate_leaderboard(accuracies, 40_000, spread=0.0)
    assert abs(np.corrcoef(apart[0], apart[1])[0, 1]) < 0.02  # 4 standard errors


def test_expected_maxima_by_closed_forms_and_by_simulation():
    root = math.sqrt(math.pi)
    assert expected_maximum(1) == pytest.approx(0, abs=1e-12)
    assert expected_maximum(2) == pytest.approx(1 / root, abs=1e-9)
    assert expected_maximum(3) == pytest.approx(1.5 / root, abs=1e-9)
    drawn = np.random.default_rng(0).normal(size=(20_000, 30)).max(axis=1)
    assert expected_maximum(30) == pytest.approx(drawn.mean(), abs=0.015)  # 4 standard errors


def test_the_selected_score_is_too_high_as_predicted_for_correlated_errors():
    generator = np.random.default_rng(0)
    shared = generator.normal(size=(20_000, 1)) * math.sqrt(0.6)
    own = generator.normal(size=(20_000, 10)) * math.sqrt(0.4)
    best = 0.02 * (shared + own).max(axis=1)
    assert selection_bias(10, 0.02, 0.6) == pytest.approx(best.mean(), abs=0.0006)
    assert selection_bias(1, 0.02) == pytest.approx(0, abs=1e-12)


def test_win_rates_of_all_models_average_one_half_and_are_borda_counts():
    scores = np.random.default_rng(0).integers(5, size=(6, 7)).astype(float)
    rates = mean_win_rate(scores)
    assert rates.mean() == pytest.approx(0.5)
    borda = np.zeros(6)
    for task in scores.T:
        for model, score in enumerate(task):
            for other, rival in enumerate(task):
                borda[model] += (other != model) * ((score > rival) + (score == rival) / 2)
    np.testing.assert_allclose(rates, borda / (5 * 7))


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
        (lambda: bootstrap_ranks(np.ones((1, 10))), "2 models and 5 items"),
        (lambda: bootstrap_ranks(np.full((2, 10), np.nan)), "NaN or an infinite number"),
        (lambda: simulate_leaderboard([0.5, 1.0], 10), r"accuracies\[1\] must be above 0"),
        (lambda: selection_bias(3, 0.1, 1.0), "correlation must be at least 0"),
        (lambda: mean_win_rate(np.ones((1, 3))), "2 models or more"),
        (lambda: mean_win_rate(np.array([[1, np.nan], [1, 2]])), "scores has NaN"),
        (lambda: accuracy_with_wrong_keys(1.2, 0.1), r"accuracy must be a share in \[0, 1\]"),
        (lambda: accuracy_with_wrong_keys(0.5, 0.1, 1), "options must be an integer of at least 2"),
        (lambda: PairOfScores(0.7, 0.8, 0.05), "it is from 0.1 to 0.5"),
        (lambda: PairOfScores(0.97, 0.98, 0.2), "it is from 0.01 to 0.05"),
    )
