"""Intervals: by the bootstrap, how often they contain the true value, and how pages write them.

BLEU and corpus ROUGE have bootstraps of their own, with sacrebleu's draws: `metrics.significance`.
Sources: Efron and Tibshirani 1993, chapter 13; Brown, Cai and DasGupta 2001 (coverage).
"""

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from course_pkg.common.arguments import require_between, require_integer
from course_pkg.evaluation.statistics import (
    Interval,
    binomial_probabilities,
    group_numbers,
    independent_units,
    normal_quantile,
)

Statistic = Callable[[np.ndarray], float]
ShareInterval = Callable[[int, int], Interval]
GroupedInterval = Callable[[np.ndarray, np.ndarray], Interval]


def bootstrap_draws(
    statistic: Statistic,
    items: int,
    *,
    groups: Sequence[Hashable] | None = None,
    samples: int = 2000,
    seed: int = 0,
) -> np.ndarray:
    """The statistic on each drawn sample, (samples,).

    Args:
        statistic: maps indices of items, (drawn,) integers with repetitions, to a number.
        groups: of each item; whole groups are drawn, so a sample's size varies if theirs do.
    """
    require_integer(items, "items")
    require_integer(samples, "samples")
    units = independent_units(items, groups)
    members = None
    if groups is not None:
        numbers = group_numbers(groups, items)
        members = [np.flatnonzero(numbers == number) for number in range(units)]
    generator = np.random.default_rng(seed)
    draws = np.empty(samples)
    for row in range(samples):
        drawn = generator.integers(units, size=units)
        if members is not None:
            drawn = np.concatenate([members[unit] for unit in drawn])
        draws[row] = statistic(drawn)
    if not np.isfinite(draws).all():
        raise ValueError(
            "the statistic is NaN or infinite on a drawn sample: define it for samples that lack "
            "a class, or draw groups"
        )
    return draws


def bootstrap_interval(
    statistic: Statistic,
    items: int,
    *,
    groups: Sequence[Hashable] | None = None,
    level: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> Interval:
    """The statistic of all items, with the middle `level` of its bootstrap draws."""
    require_between(level, "level", 0, 1)
    draws = bootstrap_draws(statistic, items, groups=groups, samples=samples, seed=seed)
    tail = (1 - level) / 2
    low, high = np.quantile(draws, [tail, 1 - tail]).tolist()
    return Interval(float(statistic(np.arange(items))), low, high, level)


def bootstrap_mean(
    values: Sequence[float], *, level: float = 0.95, samples: int = 2000, seed: int = 0
) -> Interval:
    """The mean of independent values, such as one per seed, with its bootstrap interval.

    With few values it is too short: with 10 it covers about 90% instead of 95%.
    """
    array = np.asarray(values, float)
    return bootstrap_interval(
        lambda drawn: array[drawn].mean(), len(array), level=level, samples=samples, seed=seed
    )


def binomial_coverage(
    interval: ShareInterval, items: int, probabilities: Sequence[float]
) -> np.ndarray:
    """How often an interval of `items` right-or-wrong scores contains the true share: exact, (m,).

    >>> binomial_coverage(normal, 10, [0.5, 0.95]).round(3)
    array([0.891, 0.4  ])
    """
    shares = np.asarray(probabilities, float)
    weights = binomial_probabilities(items, shares)  # (m, items + 1)
    intervals = [interval(correct, items) for correct in range(items + 1)]
    low = np.array([one.low for one in intervals])
    high = np.array([one.high for one in intervals])
    inside = (low <= shares[:, None]) & (shares[:, None] <= high)
    return np.where(inside, weights, 0.0).sum(axis=1)


def clustered_coverage(
    interval: GroupedInterval,
    *,
    groups: int,
    size: int,
    probability: float,
    correlation: float,
    simulations: int = 1000,
    seed: int = 0,
) -> float:
    """How often an interval of right-or-wrong scores in groups contains the true share.

    Args:
        interval: maps scores (n,) and group numbers (n,) to an `Interval`; n = groups · size.
        probability: the true share.
        correlation: of two scores in one group, in (0, 1); each group draws its own probability.
    """
    require_integer(groups, "groups")
    require_integer(size, "size")
    require_integer(simulations, "simulations")
    require_between(probability, "probability", 0, 1)
    require_between(correlation, "correlation", 0, 1)
    generator = np.random.default_rng(seed)
    strength = (1 - correlation) / correlation
    numbers = np.repeat(np.arange(groups), size)
    covered = 0
    for _ in range(simulations):
        own = generator.beta(probability * strength, (1 - probability) * strength, groups)
        scores = (generator.random(groups * size) < own[numbers]).astype(float)
        if probability in interval(scores, numbers):
            covered += 1
    return covered / simulations


def normal(correct: int, total: int, level: float = 0.95) -> Interval:
    """The share ± z standard errors, as `statistics.normal_interval` of the same 0s and 1s."""
    require_integer(total, "total", 2)
    share = correct / total
    margin = normal_quantile(level) * math.sqrt(share * (1 - share) / (total - 1))
    return Interval(share, share - margin, share + margin, level)


def percentile_bootstrap(correct: int, total: int, level: float = 0.95) -> Interval:
    """The percentile bootstrap with infinitely many draws: quantiles of Binomial(n, k/n) / n."""
    cumulative = np.cumsum(binomial_probabilities(total, correct / total))
    tail = (1 - level) / 2
    low, high = np.searchsorted(cumulative, [tail, 1 - tail]).tolist()
    return Interval(correct / total, low / total, high / total, level)


def clopper_pearson(correct: int, total: int, level: float = 0.95) -> Interval:
    """The interval whose coverage is never below the level, at the price of being longer (1934).

    >>> print(clopper_pearson(8, 10))
    0.800 [0.444, 0.975]
    """
    from scipy.stats import binomtest

    low, high = binomtest(correct, total).proportion_ci(level, method="exact")
    return Interval(correct / total, float(low), float(high), level)


def percent(interval: Interval, digits: int = 0) -> str:
    """A share with its interval, in percent; the bounds are cut where no share can be."""
    low = max(0.0, interval.low)
    high = min(1.0, interval.high)
    estimate, low, high = (f"{100 * share:.{digits}f}" for share in (interval.estimate, low, high))
    return f"{estimate}% [{low}, {high}]"


def points(interval: Interval, digits: int = 0) -> str:
    """A difference of shares with its interval, in percentage points, always with a sign."""
    low = max(-1.0, interval.low)
    high = min(1.0, interval.high)
    estimate, low, high = (f"{100 * share:+.{digits}f}" for share in (interval.estimate, low, high))
    return f"{estimate} [{low}, {high}]"


def verdict(interval: Interval) -> str:
    """What an interval of a difference says: "higher", "lower" or "not clearly different"."""
    if interval.low > 0:
        return "higher"
    return "lower" if interval.high < 0 else "not clearly different"
