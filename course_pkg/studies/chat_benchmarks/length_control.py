"""Length control: what the win rate would be if answers were as long as the baseline's::

    logit P(model preferred on x) = θ + φ tanh(Δ_x / d) + ψ γ_x
    controlled win rate = mean over x of σ(θ + ψ γ_x)

Source: Dubois et al. 2024, section 3, without its two extra baselines and its L1 penalty.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from course_pkg.common.arguments import require_between
from course_pkg.evaluation.statistics import (
    Interval,
    group_numbers,
    independent_units,
    score_array,
    t_interval,
    t_quantile,
)
from course_pkg.studies.chat_benchmarks.logistic import fit_logistic, sigmoid


@dataclass(frozen=True)
class LengthControl:
    """The win rate as judged, and at equal length. model, length, difficulty: θ, φ, ψ."""

    raw: Interval
    controlled: Interval
    model: float
    length: float
    difficulty: float
    predictions: np.ndarray

    @property
    def prediction_error(self) -> float:
        """What AlpacaEval reports as standard error: the predictions' own, for a known θ."""
        return float(self.predictions.std(ddof=1)) / math.sqrt(len(self.predictions))


def length_controlled_win_rate(
    preferences: Sequence[float],
    lengths: Sequence[int],
    baseline_lengths: Sequence[int],
    *,
    difficulty: Sequence[float] | None = None,
    groups: Sequence[Hashable] | None = None,
    ridge: float = 0.0,
    level: float = 0.95,
) -> LengthControl:
    """The raw and the length-controlled win rate against a baseline, with intervals.

    Args:
        preferences: (n,) in [0, 1], 1 if the model is preferred.
        lengths, baseline_lengths: characters, (n,).
        difficulty: γ, (n,): how hard each item is for models in general.
        groups: of related items, (n,).
        ridge: λ of all coefficients.
    """
    judged = score_array(preferences, "preferences")
    own = score_array(lengths, "lengths")
    other = score_array(baseline_lengths, "baseline_lengths")
    require_between(ridge, "ridge", 0, math.inf, closed=True)
    if not np.all((judged >= 0) & (judged <= 1)):
        raise ValueError("preferences must be in [0, 1]: leave comparisons without a verdict out")
    if not len(judged) == len(own) == len(other):
        raise ValueError(
            f"{len(judged)} preferences, {len(own)} lengths, {len(other)} others: match"
        )
    columns = [np.ones(len(judged)), length_term(own, other)]
    if difficulty is not None:
        hardness = score_array(difficulty, "difficulty")
        if len(hardness) != len(judged):
            raise ValueError(f"{len(judged)} preferences, but {len(hardness)} difficulties")
        columns.append(hardness)
    design = np.stack(columns, axis=1)  # (n, 2 or 3)
    fit = fit_logistic(design, judged, ridge=ridge)
    equal = design.copy()
    equal[:, 1] = 0  # the same length
    predictions = sigmoid(equal @ fit.coefficients)
    mean = float(predictions.mean())
    slope = ((predictions * (1 - predictions))[:, None] * equal).mean(axis=0)  # of the mean in β
    # Each item moves the mean by its own prediction, and by what it does to the coefficients.
    pulls = (predictions - mean) / len(judged) + fit.scores @ np.linalg.solve(
        fit.information, slope
    )
    units = independent_units(len(judged), groups)
    member = np.arange(len(judged)) if groups is None else group_numbers(groups, len(judged))
    sums = np.bincount(member, pulls)
    error = math.sqrt(units / (units - 1) * float(sums @ sums))
    quantile = t_quantile(units - 1, level)
    return LengthControl(
        t_interval(judged, groups, level),
        Interval(mean, max(0.0, mean - quantile * error), min(1.0, mean + quantile * error), level),
        model=float(fit.coefficients[0]),
        length=float(fit.coefficients[1]),
        difficulty=float(fit.coefficients[2]) if difficulty is not None else 0.0,
        predictions=predictions,
    )


def length_term(lengths: np.ndarray, baseline_lengths: np.ndarray) -> np.ndarray:
    """tanh(Δ / d), (n,): nearly linear for usual differences, and flat for extreme ones."""
    gaps = np.asarray(lengths, float) - np.asarray(baseline_lengths, float)
    spread = float(gaps.std(ddof=1))
    if spread == 0:
        raise ValueError(
            f"all answers differ from the baseline's by {gaps[0]:g} characters, so that the effect "
            "of length can't be told from the model's: use the raw win rate"
        )
    return np.tanh(gaps / spread)
