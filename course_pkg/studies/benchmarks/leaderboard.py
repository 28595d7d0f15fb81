"""What a leaderboard shows: uncertain ranks, a first place that is too high, and wrong keys.

Wrong keys are taken as spread evenly over the wrong options, however hard a question is. Sources:
Efron 1979; Rasch 1960; Liang et al. 2023 (HELM); Gema et al. 2024 (arXiv 2406.04127).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course_pkg.common.arguments import require_between, require_integer, require_number
from course_pkg.studies.benchmarks.win_rates import win_rates

GRID = np.linspace(-8.0, 8.0, 321)  # standard deviations; beyond it nothing counts


@dataclass(frozen=True)
class RankUncertainty:
    """The share of draws in which each model has each rank: (models, ranks), best rank first.

    Attributes:
        scores: the observed mean scores, (models,).
    """

    scores: np.ndarray
    shares: np.ndarray

    @property
    def first(self) -> np.ndarray:
        """How often each model is the best, (models,)."""
        return self.shares[:, 0]

    def interval(self, level: float = 0.95) -> list[tuple[int, int]]:
        """For each model the lowest and highest rank in the middle `level` of draws, from 1."""
        tail = (1 - level) / 2
        cumulated = self.shares.cumsum(axis=1)
        low = (cumulated > tail + 1e-12).argmax(axis=1) + 1
        high = (cumulated >= 1 - tail - 1e-12).argmax(axis=1) + 1
        return list(zip(low.tolist(), high.tolist(), strict=True))


def bootstrap_ranks(scores: np.ndarray, *, samples: int = 2000, seed: int = 0) -> RankUncertainty:
    """How ranks vary from one sample of items to the next; equal means are ranked by lot.

    Args:
        scores: (models, items), the score of each model on each item, drawn jointly for all models.

    >>> scores = np.array([[1, 1, 1, 0, 1, 1], [0, 0, 1, 0, 0, 0]])
    >>> bootstrap_ranks(scores).interval()
    [(1, 1), (2, 2)]
    """
    values = np.asarray(scores, float)
    if values.ndim != 2 or values.shape[0] < 2 or values.shape[1] < 5:
        raise ValueError(f"scores has shape {values.shape}; give at least 2 models and 5 items")
    if not np.isfinite(values).all():
        raise ValueError("scores has a NaN or an infinite number: score every item")
    require_integer(samples, "samples")
    models, items = values.shape
    generator = np.random.default_rng(seed)
    counts = np.zeros((models, models))
    for _ in range(samples):
        means = values[:, generator.integers(items, size=items)].mean(axis=1)
        order = np.lexsort((generator.random(models), -means.round(12)))
        counts[order, np.arange(models)] += 1
    return RankUncertainty(values.mean(axis=1), counts / samples)


def simulate_leaderboard(
    accuracies: Sequence[float], items: int, *, spread: float = 1.5, seed: int = 0
) -> np.ndarray:
    """Right-or-wrong scores of models on the same items, (models, items), by Rasch's model.

    A model of ability θ answers an item of difficulty b with probability 1 / (1 + exp(b - θ)).

    Args:
        accuracies: about the true ones, each in (0, 1).
        spread: the standard deviation of difficulties, in logits; 0 makes errors independent.
    """
    require_integer(items, "items")
    require_between(spread, "spread", 0, math.inf, closed=True)
    for number, accuracy in enumerate(accuracies):
        require_between(accuracy, f"accuracies[{number}]", 0, 1)
    generator = np.random.default_rng(seed)
    difficulty = generator.normal(0, spread, items)
    weights = _normal_density(GRID)
    low = np.full(len(accuracies), -30.0)
    high = np.full(len(accuracies), 30.0)
    for _ in range(30):  # bisection for each ability, over the distribution of difficulties
        ability = (low + high) / 2
        mean = 1 / (1 + np.exp(spread * GRID - ability[:, None])) @ weights / weights.sum()
        low = np.where(mean < accuracies, ability, low)
        high = np.where(mean < accuracies, high, ability)
    right = 1 / (1 + np.exp(difficulty - ability[:, None]))
    return (generator.random(right.shape) < right).astype(int)


def expected_maximum(count: int) -> float:
    """The mean of the largest of `count` independent standard normals: ∫ x m φ(x) Φ(x)^(m-1) dx."""
    require_integer(count, "count")
    density = _normal_density(GRID)
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in GRID])
    step = GRID[1] - GRID[0]
    return float((GRID * count * density * below ** (count - 1)).sum() * step)


def selection_bias(submissions: int, standard_error: float, correlation: float = 0.0) -> float:
    """How much too high the best of equally good submissions scores: σ √(1 - ρ) E[max of normals].

    >>> round(selection_bias(20, 0.015, correlation=0.5), 4)
    0.0198
    """
    require_between(standard_error, "standard_error", 0, math.inf, closed=True)
    require_between(correlation, "correlation", 0, 1, closed=True)
    return standard_error * math.sqrt(1 - correlation) * expected_maximum(submissions)


def mean_win_rate(scores: np.ndarray) -> np.ndarray:
    """The share of other models that each model beats, averaged over tasks, (models,) in [0, 1].

    Args:
        scores: (models, tasks), higher is better; a tie counts one half.
    """
    values = np.asarray(scores, float)
    if values.ndim != 2 or values.shape[0] < 2 or values.shape[1] < 1:
        raise ValueError(f"scores has shape {values.shape}; give (models, tasks), 2 models or more")
    if np.isnan(values).any():
        raise ValueError("scores has NaN: give every model a score on every task, or leave one out")
    return np.array(win_rates(values.tolist()))


def _normal_density(x: np.ndarray) -> np.ndarray:
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


@dataclass(frozen=True)
class PairOfScores:
    """The accuracies of two models, and the share of questions that exactly one gets right."""

    baseline: float
    system: float
    disagreement: float

    def __post_init__(self) -> None:
        for name in ("baseline", "system", "disagreement"):
            _share(getattr(self, name), name)
        least = abs(self.difference)
        most = min(self.baseline + self.system, 2 - self.baseline - self.system)
        if not least - 1e-12 <= self.disagreement <= most + 1e-12:
            raise ValueError(f"disagreement must fit: it is from {least:.4g} to {most:.4g} here")

    @property
    def difference(self) -> float:
        """system - baseline."""
        return self.system - self.baseline


def accuracy_with_wrong_keys(accuracy: float, wrong: float, options: int = 4) -> float:
    """What a benchmark with wrong keys shows: a (1 - e) + (1 - a) e / (K - 1), in [0, 1].

    Args:
        accuracy: the true one, a.
        wrong: the share of wrong keys, e.
        options: of each question, K.

    >>> [round(accuracy_with_wrong_keys(a, 0.06), 4) for a in (1.0, 0.9, 0.25)]
    [0.94, 0.848, 0.25]
    """
    _share(accuracy, "accuracy")
    _share(wrong, "wrong")
    require_integer(options, "options", 2)
    return accuracy * (1 - wrong) + (1 - accuracy) * wrong / (options - 1)


def pair_with_wrong_keys(pair: PairOfScores, wrong: float, options: int = 4) -> PairOfScores:
    """What a benchmark with wrong keys shows of two models whose errors are independent."""
    others = require_integer(options, "options", 2) - 1
    baseline = accuracy_with_wrong_keys(pair.baseline, wrong, options)
    system = accuracy_with_wrong_keys(pair.system, wrong, options)
    both_err = 1 - (pair.baseline + pair.system + pair.disagreement) / 2
    # With a wrong key, exactly one hits it: the one that errs, or one of the two that do.
    hit = pair.disagreement / others + both_err * 2 * (others - 1) / others**2
    return PairOfScores(baseline, system, pair.disagreement * (1 - wrong) + wrong * hit)


def _share(value: float, name: str) -> None:
    if not 0 <= require_number(value, name) <= 1:
        raise ValueError(f"{name} must be a share in [0, 1], got {value}")
