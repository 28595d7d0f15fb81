"""Temperature scaling: make a model's confidences fit its accuracy by one number.

    p = softmax(scores / T)

T > 1 makes all confidences smaller, T < 1 larger. T minimizes the log loss on items whose answers
are known. In β = 1/T the log loss is convex, and its slope, the mean of E_p[score] - score of the
answer, rises: the minimum is where it crosses 0.

What it can't do: the order of an item's options stays, so the answers and the accuracy stay. One
number can't correct a model that is too sure in one subject and too modest in another. And T fits
the items it was fitted on: judge it on others.

Source: Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2. Chapter:
evaluation/likelihood-and-generation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course_pkg.common.arguments import require_between
from course_pkg.studies.likelihood_and_generation.calibration import checked_options, log_loss

STEPS = 60  # of a bisection: the interval shrinks by 2^60


@dataclass(frozen=True)
class TemperatureFit:
    """The temperature, and the log loss in nats per item without and with it, on the same items."""

    temperature: float
    log_loss_before: float
    log_loss_after: float


def option_log_probabilities(scores: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """log softmax(scores / temperature) over the options, (items, options).

    scores: (items, options), any scores whose differences are log-odds, such as an option's
    log-probability; -inf for an option that an item lacks. Raises ValueError for another shape,
    NaN or +inf, an item without a finite score, or unless temperature > 0.

    >>> np.exp(option_log_probabilities(np.array([[0.0, np.log(9)]]), temperature=2)).round(2)
    array([[0.25, 0.75]])
    """
    return _log_softmax(_checked_scores(scores), 1 / _positive(temperature))


def fit_temperature(scores: np.ndarray, answers: Sequence[int]) -> TemperatureFit:
    """The temperature with the smallest log loss on these items.

    scores: as for `option_log_probabilities`. answers: (items,), the number of the right option.
    Raises ValueError also if there is no best temperature: T → 0 if every answer has the highest
    score of its item, T → ∞ if the answers' scores are not above the average option's.

    >>> scores = np.log([[0.9, 0.1]] * 4)  # 90% sure, and right in 3 of 4 cases
    >>> fit = fit_temperature(scores, [0, 0, 0, 1])
    >>> round(fit.temperature, 3)  # log odds of 2.2 become 1.1
    2.0
    >>> np.exp(option_log_probabilities(scores, fit.temperature))[0].round(3)
    array([0.75, 0.25])
    """
    values = _checked_scores(scores)
    right = checked_options(values, answers, "scores")
    chosen = values[np.arange(len(values)), right]
    if not np.isfinite(chosen).all():
        raise ValueError("a right answer has the score -inf: no temperature makes it possible")
    if np.all(chosen == values.max(axis=1)):
        raise ValueError(
            "every right answer has the highest score, so log loss falls as T goes to 0: fit on "
            "more items, some of which the model gets wrong"
        )
    if _slope(values, chosen, 0.0) >= 0:
        raise ValueError(
            "right answers score no higher than the average option, so log loss falls as T goes to "
            "infinity: the scores say nothing about the answers"
        )
    low = 0.0
    high = 1.0
    while _slope(values, chosen, high) < 0:
        high *= 2
    for _ in range(STEPS):
        middle = (low + high) / 2
        if _slope(values, chosen, middle) < 0:
            low = middle
        else:
            high = middle
    beta = (low + high) / 2
    before = log_loss(_log_softmax(values, 1.0), right)
    return TemperatureFit(1 / beta, before, log_loss(_log_softmax(values, beta), right))


def _slope(scores: np.ndarray, chosen: np.ndarray, beta: float) -> float:
    """d(log loss)/dβ: the mean of the expected score minus the answer's."""
    finite = np.where(np.isfinite(scores), scores, 0.0)
    expected = (np.exp(_log_softmax(scores, beta)) * finite).sum(axis=1)
    return float((expected - chosen).mean())


def _log_softmax(scores: np.ndarray, beta: float) -> np.ndarray:
    scaled = np.where(np.isfinite(scores), beta * np.where(np.isfinite(scores), scores, 0), -np.inf)
    scaled = scaled - scaled.max(axis=1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))


def _checked_scores(scores: np.ndarray) -> np.ndarray:
    values = np.asarray(scores, float)
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(f"scores has shape {values.shape}; give (items, options)")
    if np.isnan(values).any() or np.any(values == np.inf):
        raise ValueError("scores has NaN or +inf: look at the item that has it")
    if not np.isfinite(values).any(axis=1).all():
        raise ValueError("an item has no option with a finite score")
    return values


def _positive(temperature: float) -> float:
    return require_between(temperature, "temperature", 0, float("inf"))
