"""Temperature scaling: the optimum by other means, what stays, and where there is no optimum."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from course_pkg.evaluation.calibration import expected_calibration_error, log_loss
from course_pkg.evaluation.temperature_scaling import fit_temperature, option_log_probabilities


def model(temperature, seed=0, items=2000, options=4):
    """Scores that are calibrated if they are divided by the temperature."""
    rng = np.random.default_rng(seed)
    true = rng.normal(0, 2, (items, options))
    right = (true + rng.gumbel(size=true.shape)).argmax(axis=1)  # drawn from softmax(true)
    return true * temperature, right


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_fit_is_the_minimum_that_scipy_finds_and_the_true_temperature_within_chance(
    temperature,
):
    scores, right = model(temperature)
    fit = fit_temperature(scores, right)

    def loss(logarithm):
        logs = log_softmax(scores / math.exp(logarithm), axis=1)
        return -logs[np.arange(len(right)), right].mean()

    found = minimize_scalar(loss, bracket=(-1, 1), tol=1e-12)
    assert fit.temperature == pytest.approx(math.exp(found.x), rel=1e-5)
    assert fit.log_loss_after == pytest.approx(found.fun, rel=1e-12)
    assert fit.log_loss_before == pytest.approx(loss(0.0), rel=1e-12)
    assert fit.temperature == pytest.approx(temperature, rel=0.1)


def test_the_fit_is_that_of_scikit_learn():
    scores, right = model(2.5)

    identity = LogisticRegression().fit(np.eye(4), range(4))
    identity.coef_ = np.eye(4)  # so that its decision function returns the scores
    identity.intercept_ = np.zeros(4)
    other = CalibratedClassifierCV(FrozenEstimator(identity), method="temperature", ensemble=False)
    expected = other.fit(scores, right).predict_proba(scores)
    fit = fit_temperature(scores, right)
    found = np.exp(option_log_probabilities(scores, fit.temperature))
    assert found == pytest.approx(expected, abs=1e-4)  # its optimizer stops earlier


def test_answers_stay_and_new_items_are_better_calibrated():
    scores, right = model(3.0, seed=1)
    fit = fit_temperature(scores, right)
    others, answers = model(3.0, seed=2)
    before, after = (np.exp(option_log_probabilities(others, t)) for t in (1.0, fit.temperature))
    assert np.array_equal(before.argmax(axis=1), after.argmax(axis=1))
    correct = before.argmax(axis=1) == answers
    errors = [expected_calibration_error(p.max(axis=1), correct) for p in (before, after)]
    assert errors[0] > 0.15 and errors[1] < 0.04
    assert log_loss(np.log(after), answers) < log_loss(np.log(before), answers)


def test_a_constant_added_to_an_items_scores_changes_nothing_and_a_factor_scales_t():
    scores, right = model(1.5, items=200)
    fit = fit_temperature(scores, right)
    shifted = scores + np.linspace(-1000, 1000, 200)[:, None]
    assert fit_temperature(shifted, right).temperature == pytest.approx(fit.temperature, rel=1e-9)
    scaled = fit_temperature(1000 * scores, right)
    assert scaled.temperature == pytest.approx(1000 * fit.temperature, rel=1e-9)


def test_an_option_that_an_item_lacks_has_probability_0():
    scores, right = model(2.0, items=300)
    padded = np.concatenate([scores, np.full((300, 1), -np.inf)], axis=1)
    assert fit_temperature(padded, right) == fit_temperature(scores, right)
    assert np.all(np.exp(option_log_probabilities(padded, 3.0))[:, -1] == 0)


def test_log_probabilities_are_those_of_scipy_also_for_large_scores():
    scores = np.array([[1000.0, 999.0, -1000.0], [0.0, 0.0, 0.0]])
    assert option_log_probabilities(scores) == pytest.approx(log_softmax(scores, axis=1), rel=1e-12)


def test_one_temperature_cannot_correct_two_opposite_errors():
    sure, right = model(3.0, seed=3)
    modest, answers = model(1 / 3, seed=4)
    fit = fit_temperature(np.concatenate([sure, modest]), np.concatenate([right, answers]))
    for scores, truth in ((sure, right), (modest, answers)):
        p = np.exp(option_log_probabilities(scores, fit.temperature))
        correct = p.argmax(axis=1) == truth
        assert expected_calibration_error(p.max(axis=1), correct) > 0.05


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_temperature(np.eye(2), [0, 1]), "every right answer has the highest score"),
        (lambda: fit_temperature(np.eye(2), [1, 0]), "score no higher than the average option"),
        (
            lambda: fit_temperature(np.zeros((3, 2)), [0, 1, 0]),
            "every right answer has the highest",
        ),
        (lambda: fit_temperature(np.array([[0.0, -math.inf]]), [1]), "has the score -inf"),
        (lambda: fit_temperature(np.zeros(3), [0]), r"scores has shape \(3,\)"),
        (lambda: fit_temperature(np.array([[math.inf, 0.0]]), [0]), r"NaN or \+inf"),
        (lambda: option_log_probabilities(np.full((1, 2), -math.inf)), "no option with a finite"),
        (lambda: option_log_probabilities(np.eye(2), 0.0), "temperature must be above 0"),
    ],
)
def test_what_no_temperature_can_be_fitted_to_is_an_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
