"""Length control: what the win rate would be if answers were as long as the baseline's.

    logit P(model preferred on x) = θ + φ tanh(Δ_x / d) + ψ γ_x
    controlled win rate = mean over x of σ(θ + ψ γ_x)

Δ_x: the model's length minus the baseline's, in characters; d: the standard deviation of all Δ.
γ_x: how hard instruction x is for models in general, estimated beforehand from many models and then
fixed. All terms vanish for the baseline against itself, so that its win rate is 0.5, and the two
rates of a pair add up to 1.

AlpacaEval subtracts the other way around, so that its φ has the other sign. It also adds two
baselines that were told to be brief or verbose, with weight 0.2, and chooses an L1 penalty by
cross-validation. Here there is a fixed ridge, 0 by default. With neither, both are the same maximum
likelihood. AlpacaEval's standard error is the spread of the predictions, which leaves out that θ is
estimated; the interval here counts both.

Source: Dubois et al. 2024, "Length-Controlled AlpacaEval", section 3.
Chapter: evaluation/chat-benchmarks.
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
    """The win rate as judged, and at equal length.

    model, length, difficulty: θ, φ, ψ; the last is 0 if no difficulties were given.
    length_interval: of φ. predictions: the controlled win probability of each instruction, (n,).
    """

    raw: Interval
    controlled: Interval
    model: float
    length: float
    difficulty: float
    length_interval: Interval
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

    preferences: (n,) in [0, 1], 1 if the model is preferred. lengths, baseline_lengths: characters,
    (n,). difficulty: γ, (n,). groups: of related items, (n,). ridge: λ of all coefficients. Raises
    ValueError for lengths that never differ, or always by the same number, for a model that always
    wins, or for fewer than 5 items or groups.
    Source: Dubois et al. 2024, equation 2, and alpaca_eval's `glm_winrate.py`.

    >>> rng = np.random.default_rng(0)
    >>> own, other = rng.integers(300, 900, 2000), rng.integers(200, 800, 2000)
    >>> gap = own - other
    >>> judged = rng.random(2000) < sigmoid(1.5 * np.tanh(gap / gap.std(ddof=1)))  # θ = 0
    >>> result = length_controlled_win_rate(judged, own, other)
    >>> print(result.raw, "|", result.controlled)
    0.594 [0.572, 0.615] | 0.510 [0.484, 0.536]
    """
    judged = score_array(preferences, "preferences")
    own = score_array(lengths, "lengths")
    other = score_array(baseline_lengths, "baseline_lengths")
    require_between(ridge, "ridge", 0, math.inf, closed=True)
    if not np.all((judged >= 0) & (judged <= 1)):
        raise ValueError("preferences must be in [0, 1]: leave comparisons without a verdict out")
    if not len(judged) == len(own) == len(other):
        raise ValueError(
            f"{len(judged)} preferences, {len(own)} lengths and {len(other)} baseline lengths: "
            "give one of each for each item"
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
    phi = float(fit.coefficients[1])
    phi_error = quantile * math.sqrt(fit.sandwich(groups)[1, 1])
    return LengthControl(
        t_interval(judged, groups, level),
        Interval(mean, max(0.0, mean - quantile * error), min(1.0, mean + quantile * error), level),
        model=float(fit.coefficients[0]),
        length=phi,
        difficulty=float(fit.coefficients[2]) if difficulty is not None else 0.0,
        length_interval=Interval(phi, phi - phi_error, phi + phi_error, level),
        predictions=predictions,
    )


def length_term(lengths: np.ndarray, baseline_lengths: np.ndarray) -> np.ndarray:
    """tanh(Δ / d), (n,): nearly linear for usual differences, and flat for extreme ones.

    Raises ValueError if all differences are equal, for then length can't be told from the model.

    >>> length_term(np.array([120, 80, 100]), np.array([100, 100, 100])).round(3).tolist()
    [0.762, -0.762, 0.0]
    """
    gaps = np.asarray(lengths, float) - np.asarray(baseline_lengths, float)
    spread = float(gaps.std(ddof=1))
    if spread == 0:
        raise ValueError(
            f"all answers differ from the baseline's by {gaps[0]:g} characters, so that the effect "
            "of length can't be told from the model's: use the raw win rate"
        )
    return np.tanh(gaps / spread)
