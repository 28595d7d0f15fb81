"""What a leaderboard shows: uncertain ranks, a first place that is too high, and wrong keys.

Ranks are uncertain like scores: draw the items again, with replacement, and rank again. All models
answer the same drawn items, since hard items are hard for all.

The best of m submissions looks better than it is. If m equally good ones have scores with standard
error σ and correlation ρ, the best is too high by σ √(1 - ρ) E[max of m standard normals].

A mean win rate is the share of other models that a model beats, averaged over tasks. It needs no
common unit, but it depends on who else is there: another model can reverse the order of two.

Wrong keys: a question has K options, and its key is wrong with probability e. Then the key is one
of the other K - 1, and a model that errs may hit it by chance. If wrong keys and errors are spread
evenly over the options, and do not depend on how hard the question is, a model with the true
accuracy a shows

    observed = a (1 - e) + (1 - a) e / (K - 1)

So every difference shrinks by the factor 1 - e K / (K - 1). Left out: questions that are unclear or
have several right answers, errors where questions are hard, and models that have seen the keys.

Sources: Efron 1979, for the bootstrap; Rasch 1960, for items and abilities; Liang et al. 2023
(HELM), for the mean win rate; Perlitz et al. 2023, arXiv 2308.11696, on its dependence on other
models; Gema et al. 2024, "Are We Done with MMLU?" (arXiv 2406.04127), for kinds of wrong keys.
Chapter: evaluation/benchmarks.
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
    """How the models' ranks vary from one sample of items to the next.

    scores: (models, items), the score of each model on each item. Equal means are ranked by lot.
    Raises ValueError for fewer than 2 models or 5 items, or scores that aren't finite.
    Source: Efron 1979, with the items drawn jointly for all models.

    >>> scores = np.array([[1, 1, 1, 0, 1, 1], [0, 0, 1, 0, 0, 0]])
    >>> bootstrap_ranks(scores).interval()
    [(1, 1), (2, 2)]
    """
    values = np.asarray(scores, float)
    if values.ndim != 2 or values.shape[0] < 2 or values.shape[1] < 5:
        raise ValueError(
            f"scores has shape {values.shape}; give (models, items), with 2 models and 5 items"
        )
    if not np.isfinite(values).all():
        raise ValueError(
            "scores has a NaN or an infinite number: score every item, or leave it out"
        )
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
    """Right-or-wrong scores of models on the same items, (models, items), of 0 and 1.

    accuracies: about the true ones, each in (0, 1). spread: the standard deviation of the items'
    difficulty, in logits; 0 makes the models' errors independent. A model of ability θ answers an
    item of difficulty b with probability 1 / (1 + exp(b - θ)); θ is set so that the mean over
    items is the accuracy.
    Source: Rasch 1960.

    >>> scores = simulate_leaderboard([0.6, 0.8], 20_000)
    >>> scores.shape, scores.mean(axis=1).round(2).tolist()
    ((2, 20000), [0.6, 0.8])
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
    """The mean of the largest of `count` independent standard normal numbers.

    ∫ x m φ(x) Φ(x)^(m-1) dx, on a grid. Raises ValueError unless count is at least 1.

    >>> [round(expected_maximum(m), 3) for m in (2, 10, 100)]
    [0.564, 1.539, 2.508]
    """
    require_integer(count, "count")
    density = _normal_density(GRID)
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in GRID])
    step = GRID[1] - GRID[0]
    return float((GRID * count * density * below ** (count - 1)).sum() * step)


def selection_bias(submissions: int, standard_error: float, correlation: float = 0.0) -> float:
    """How much too high the best of several equally good submissions scores on average.

    standard_error: of one score. correlation: of the scores' errors, in [0, 1), positive because
    all submissions answer the same items. Raises ValueError for other values.
    Source: the expected maximum of equally correlated normal numbers.

    >>> round(selection_bias(20, 0.015, correlation=0.5), 4)
    0.0198
    """
    require_between(standard_error, "standard_error", 0, math.inf, closed=True)
    require_between(correlation, "correlation", 0, 1, closed=True)
    return standard_error * math.sqrt(1 - correlation) * expected_maximum(submissions)


def mean_win_rate(scores: np.ndarray) -> np.ndarray:
    """The share of other models that each model beats, averaged over tasks, (models,) in [0, 1].

    scores: (models, tasks), higher is better; a tie counts one half. Times (models - 1) and the
    number of tasks, it is the Borda count, so both give the same order. Raises ValueError for
    fewer than 2 models, no task, or NaN.
    Source: Liang et al. 2023 (HELM).

    >>> mean_win_rate(np.array([[0.9, 30.0], [0.8, 40.0], [0.7, 20.0]])).tolist()
    [0.75, 0.75, 0.0]
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
            raise ValueError(
                f"disagreement is {self.disagreement}, but for these accuracies it is from "
                f"{least:.4g} to {most:.4g}"
            )

    @property
    def difference(self) -> float:
        """system - baseline."""
        return self.system - self.baseline


def accuracy_with_wrong_keys(accuracy: float, wrong: float, options: int = 4) -> float:
    """The accuracy that a benchmark with wrong keys shows, in [0, 1].

    accuracy: the true one. wrong: the share of wrong keys. options: per question, at least 2.
    Raises ValueError for shares outside [0, 1] or fewer options.

    >>> [round(accuracy_with_wrong_keys(a, 0.06), 4) for a in (1.0, 0.9, 0.25)]
    [0.94, 0.848, 0.25]
    """
    _share(accuracy, "accuracy")
    _share(wrong, "wrong")
    require_integer(options, "options", 2)
    return accuracy * (1 - wrong) + (1 - accuracy) * wrong / (options - 1)


def pair_with_wrong_keys(pair: PairOfScores, wrong: float, options: int = 4) -> PairOfScores:
    """What a benchmark with wrong keys shows of two models, for `power.paired_variance`.

    Where both models err, they choose their wrong options independently; models that err alike
    disagree less. Arguments and errors as for `accuracy_with_wrong_keys`.

    >>> seen = pair_with_wrong_keys(PairOfScores(0.97, 0.98, 0.02), 0.06)
    >>> round(seen.difference, 4), round(seen.disagreement, 4)
    (0.0092, 0.0196)
    """
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
