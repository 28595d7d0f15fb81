"""`benchmarks`, in the student's process: the fit that an answer gets as a function."""

from typing import Any

MOST_STEPS = 40


def fit(design: Any, outcomes: Any) -> list[float]:
    """The coefficients of a logistic regression, by Newton's method."""
    import numpy as np

    x, y = np.array(design, float), np.array(outcomes, float)
    coefficients = np.zeros(x.shape[1])
    for _ in range(MOST_STEPS):
        chances = np.exp(-np.logaddexp(0, -x @ coefficients))
        curvature = (x.T * (chances * (1 - chances))) @ x
        coefficients = coefficients + np.linalg.solve(curvature, x.T @ (y - chances))
    return coefficients.tolist()


def call_length_controlled(answer: Any, inputs: dict[str, Any]) -> Any:
    """What `length_controlled(fit, preferences, …)` gives."""
    names = ("preferences", "lengths", "baseline_lengths", "difficulty")
    return answer(fit, *(inputs[name] for name in names))
