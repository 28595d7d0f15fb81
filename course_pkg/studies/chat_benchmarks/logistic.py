"""Logistic regression by Newton's method, with standard errors that count groups::

    P(y = 1 | x) = σ(x·β),   β maximizes  Σ w [y ln σ + (1 - y) ln(1 - σ)] - Σ_j λ_j β_j² / 2

Sources: McCullagh and Nelder 1989; White 1982; Liang and Zeger 1986 (groups).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from course_pkg.evaluation.statistics import group_numbers, independent_units

MOST_STEPS = 100
LARGEST_LOGIT = 18.0  # no data make a finite one that large: the coefficients run away
PRECISION = 1e-12  # of the gradient, per observation; a runaway fit doesn't reach it


@dataclass(frozen=True)
class LogisticFit:
    """coefficients: (p,). information: the Hessian H, (p, p). scores: rows' gradients, (n, p)."""

    coefficients: np.ndarray
    information: np.ndarray
    scores: np.ndarray

    def fisher(self) -> np.ndarray:
        """The covariance H⁻¹: right if the model holds and rows are independent, (p, p)."""
        return np.linalg.inv(self.information)

    def sandwich(self, groups: Sequence[Hashable] | None = None) -> np.ndarray:
        """The covariance that needs neither, and counts groups of related rows, (p, p).

        H⁻¹ (Σ_c u_c u_cᵀ) H⁻¹ · C/(C - 1), where u_c is the sum of a group's gradients.
        """
        units = independent_units(len(self.scores), groups)
        sums = self.scores
        if groups is not None:
            sums = np.zeros((units, self.scores.shape[1]))
            np.add.at(sums, group_numbers(groups, len(self.scores)), self.scores)
        bread = np.linalg.inv(self.information)
        return units / (units - 1) * bread @ (sums.T @ sums) @ bread


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x), without overflow.

    >>> sigmoid(np.array([-1000.0, 0.0, 1000.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return np.exp(-np.logaddexp(0, -logits))


def fit_logistic(
    design: np.ndarray,
    outcomes: np.ndarray,
    *,
    weights: np.ndarray | None = None,
    ridge: float | np.ndarray = 0.0,
) -> LogisticFit:
    """Fit a logistic regression by Newton's method (IRLS): β ← β + H⁻¹ g.

    Args:
        design: (n, p); a column of ones is the intercept.
        outcomes: (n,) in [0, 1]; a tie is 0.5.
        weights: (n,) of at least 0.
        ridge: λ, one or for each coefficient, (p,).
    """
    rows, columns = design.shape
    weight = np.ones(rows) if weights is None else weights
    penalty = np.broadcast_to(np.asarray(ridge, float), columns)
    beta = np.zeros(columns)
    for _ in range(MOST_STEPS):
        logits = design @ beta
        chances = sigmoid(logits)
        scores = (weight * (outcomes - chances))[:, None] * design  # (n, p)
        gradient = scores.sum(axis=0) - penalty * beta
        information = (design.T * (weight * chances * (1 - chances))) @ design + np.diag(penalty)
        if np.abs(logits).max() > LARGEST_LOGIT:
            break
        if np.abs(gradient).max() <= PRECISION * weight.sum():
            return LogisticFit(beta, information, scores)
        try:
            step = np.linalg.solve(information, gradient)
        except np.linalg.LinAlgError:
            raise ValueError(
                "columns of the regression depend on each other (a constant one, or a copy): leave "
                "one out, or give a ridge above 0"
            ) from None
        loss = _loss(design, outcomes, weight, penalty, beta)
        while _loss(design, outcomes, weight, penalty, beta + step) > loss + 1e-12 * abs(loss):
            step = step / 2  # Newton can overshoot where the curve is flat
        beta = beta + step
    raise ValueError(
        "no finite coefficients are best: a combination of the columns predicts all outcomes; give "
        "more data, or a ridge above 0"
    )


def _loss(
    design: np.ndarray,
    outcomes: np.ndarray,
    weight: np.ndarray,
    penalty: np.ndarray,
    beta: np.ndarray,
) -> float:
    logits = design @ beta
    # -[y ln σ(z) + (1 - y) ln(1 - σ(z))] = ln(1 + e^z) - y z
    return float(
        (weight * (np.logaddexp(0, logits) - outcomes * logits)).sum()
        + (penalty * beta**2).sum() / 2
    )
