"""Temperature scaling: the optimum by other means, what stays, and where there is no optimum."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from course_pkg.studies.likelihood_and_generation.confidence import (
    fit_temperature,
    option_log_probabilities,
)
from tests.refusals import require_refusals


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
    assert fit.temperature == pytest.approx(math.exp(found.x), rel=1e-5)
    assert fit.log_loss_after == pytest.approx(found.fun, rel=1e-12)
    assert fit.log_loss_before == pytest.approx(loss(0.0), rel=1e-12)
    assert fit.temperature == pytest.approx(temperature, rel=0.1)


def test_shifts_factors_and_options_that_an_item_lacks():
    scores, right = model(1.5, items=200)
    fit = fit_temperature(scores, right)
    shifted = scores + np.linspace(-1000, 1000, 200)[:, None]
    assert fit_temperature(shifted, right).temperature == pytest.approx(fit.temperature, rel=1e-9)
    scaled = fit_temperature(1000 * scores, right)
    assert scaled.temperature == pytest.approx(1000 * fit.temperature, rel=1e-9)
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
