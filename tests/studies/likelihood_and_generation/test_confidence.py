"""Calibration: edges, identities, the numbers of other libraries, and intervals that cover."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from course_pkg.studies.likelihood_and_generation.confidence import (
    brier_binary,
    brier_multiclass,
    calibrated_ece,
    ece_interval,
    expected_calibration_error,
    fit_temperature,
    option_log_probabilities,
    reliability_diagram,
)
from tests.refusals import require_refusals


def answers(seed=0, items=300):
    rng = np.random.default_rng(seed)
    confidences = rng.uniform(0.2, 1.0, items)
    return confidences, rng.random(items) < confidences**2


def options(seed=0, items=97, count=4):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(count), items), rng.integers(0, count, items)


@pytest.mark.parametrize(("binning", "strategy"), [("width", "uniform"), ("mass", "quantile")])
@pytest.mark.parametrize("bins", [1, 10])
def test_the_diagram_is_that_of_scikit_learn(bins, binning, strategy):
    # 300 answers divide evenly; if they don't, scikit-learn's quantiles may cut elsewhere.
    confidences, correct = answers()
    found = [
        one for one in reliability_diagram(confidences, correct, bins, binning).bins if one.count
    ]
    shares, means = calibration_curve(correct, confidences, n_bins=bins, strategy=strategy)
    assert [one.accuracy for one in found] == pytest.approx(shares.tolist(), rel=1e-12)
    assert [one.confidence for one in found] == pytest.approx(means.tolist(), rel=1e-12)


@pytest.mark.parametrize(("items", "binning"), [(1, "mass"), (97, "width"), (1023, "mass")])
def test_the_error_is_the_weighted_sum_of_the_diagrams_gaps(items, binning):
    confidences, correct = answers(items=items)
    diagram = reliability_diagram(confidences, correct, 10, binning)
    found = expected_calibration_error(confidences, correct, 10, binning)
    assert found == pytest.approx(diagram.expected_calibration_error, rel=1e-12)
    assert diagram.count == items
    assert 0 <= found <= 1


def test_edges_are_in_the_lower_bin_1_in_the_last_and_an_empty_bin_adds_nothing():
    confidences = [0.0, 0.1, 0.3, 0.6, 0.7, 0.9, 1.0, 1.0]
    counts = [one.count for one in reliability_diagram(confidences, [1] * 8, 10).bins]
    assert counts == [2, 0, 1, 0, 0, 1, 1, 0, 1, 2]
    # A bin of its own for 1.0, as torchmetrics 1.9.0 has, would give |0 - 1|/2 + |1 - 0.95|/2.
    assert expected_calibration_error([0.95, 1.0], [1, 0], 10) == pytest.approx(0.475)
    diagram = reliability_diagram([0.95, 0.85], [1, 1], 10)
    empty = diagram.bins[0]
    assert (empty.low, empty.high, empty.count, empty.accuracy, empty.gap) == (0.0, 0.1, 0, None, 0)
    assert diagram.expected_calibration_error == pytest.approx(0.1)


@pytest.mark.parametrize("items", [10, 97, 103])
def test_bins_of_equal_mass_differ_by_at_most_one_answer(items):
    confidences, correct = answers(1, items)
    counts = [one.count for one in reliability_diagram(confidences, correct, 10, "mass").bins]
    assert max(counts) - min(counts) <= 1


def test_equal_confidences_share_a_bin_and_the_order_of_items_does_not_matter():
    rng = np.random.default_rng(0)
    confidences = rng.choice([0.5, 0.8, 0.9, 1.0], 200, p=[0.1, 0.2, 0.6, 0.1])
    correct = rng.random(200) < 0.7
    diagram = reliability_diagram(confidences, correct, 10, "mass")
    filled = [one for one in diagram.bins if one.count]
    assert all(one.low == one.high for one in filled) and len(filled) == 4
    order = rng.permutation(200)
    again = reliability_diagram(confidences[order], correct[order], 10, "mass")
    found = again.expected_calibration_error
    assert found == pytest.approx(diagram.expected_calibration_error, rel=1e-12)


def test_brier_scores_are_those_of_scikit_learn():
    probabilities, right = options()
    found = brier_multiclass(probabilities, right)
    expected = brier_score_loss(right, probabilities, scale_by_half=False, labels=range(4))
    assert found == pytest.approx(expected, rel=1e-12)
    confidences, correct = answers()
    assert brier_binary(confidences, correct) == pytest.approx(
        brier_score_loss(correct, confidences), rel=1e-12
    )


def test_invalid_arguments_are_errors():
    require_refusals(
        (lambda: reliability_diagram([], []), "confidences has shape"),
        (lambda: reliability_diagram([0.5], [1, 0]), "1 confidences, 2 answers"),
        (lambda: reliability_diagram([-2.3], [1]), r"confidences\[0\] is -2.3"),
        (lambda: reliability_diagram([0.5], [2]), "correct must hold True or False"),
        (lambda: reliability_diagram([0.5], [1], 0), "bins must be an integer of at least 1"),
        (lambda: reliability_diagram([0.5], [1], 10, "equal"), "binning must be one of width"),
        (lambda: brier_multiclass(np.array([[0.4, 0.4]]), [0]), "rows of sum 1"),
        (lambda: brier_multiclass(np.array([0.4, 0.6]), [0]), r"shape \(2,\); give \(items"),
        (lambda: brier_multiclass(np.eye(2), [0, 2]), "answers must be from 0 to 1"),
        (lambda: brier_multiclass(np.eye(2), [0.0, 1.0]), "answers must be 2 integers"),
        (lambda: brier_multiclass(np.full((1, 2), math.nan), [0]), "probabilities has NaN"),
        (lambda: calibrated_ece([1.2]), r"confidences\[0\] is 1.2"),
        (lambda: ece_interval([0.5], [1], level=1.0), "level must be above 0 and below 1"),
        (lambda: ece_interval([0.5, 0.6], [1]), "2 confidences, 1 answers"),
    )


def model(temperature, seed=0, items=2000, options=4):
    """Scores that are calibrated if they are divided by the temperature."""
    rng = np.random.default_rng(seed)
    true = rng.normal(0, 2, (items, options))
    right = (true + rng.gumbel(size=true.shape)).argmax(axis=1)  # drawn from softmax(true)
    return true * temperature, right


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_fit_is_the_minimum_that_scipy_finds_and_near_the_true_temperature(temperature):
    scores, right = model(temperature)
    fit = fit_temperature(scores, right)

    def loss(logarithm):
        logs = log_softmax(scores / math.exp(logarithm), axis=1)
        return -logs[np.arange(len(right)), right].mean()

    found = minimize_scalar(loss, bracket=(-1, 1), tol=1e-12)
    assert fit == pytest.approx(math.exp(found.x), rel=1e-5)
    assert loss(math.log(fit)) == pytest.approx(found.fun, rel=1e-12)
    assert fit == pytest.approx(temperature, rel=0.1)


def test_shifts_factors_and_options_that_an_item_lacks():
    scores, right = model(1.5, items=200)
    fit = fit_temperature(scores, right)
    shifted = scores + np.linspace(-1000, 1000, 200)[:, None]
    assert fit_temperature(shifted, right) == pytest.approx(fit, rel=1e-9)
    assert fit_temperature(1000 * scores, right) == pytest.approx(1000 * fit, rel=1e-9)
    scores, right = model(2.0, items=300)
    padded = np.concatenate([scores, np.full((300, 1), -np.inf)], axis=1)
    assert fit_temperature(padded, right) == fit_temperature(scores, right)
    assert np.all(np.exp(option_log_probabilities(padded, 3.0))[:, -1] == 0)
    scores = np.array([[1000.0, 999.0, -1000.0], [0.0, 0.0, 0.0]])
    assert option_log_probabilities(scores) == pytest.approx(log_softmax(scores, axis=1), rel=1e-12)


def test_what_no_temperature_can_be_fitted_to_is_an_error():
    require_refusals(
        (lambda: fit_temperature(np.eye(2), [0, 1]), "every right answer has the highest score"),
        (lambda: fit_temperature(np.eye(2), [1, 0]), "score no higher than the average option"),
        (lambda: fit_temperature(np.zeros((3, 2)), [0, 1, 0]), "every right answer has the"),
        (lambda: fit_temperature(np.array([[0.0, -math.inf]]), [1]), "has the score -inf"),
        (lambda: fit_temperature(np.zeros(3), [0]), r"scores has shape \(3,\)"),
        (lambda: fit_temperature(np.array([[math.inf, 0.0]]), [0]), r"NaN or \+inf"),
        (lambda: option_log_probabilities(np.full((1, 2), -math.inf)), "no option with a finite"),
        (lambda: option_log_probabilities(np.eye(2), 0.0), "temperature must be above 0"),
    )


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
