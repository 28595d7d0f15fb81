"""Error bars of one score: standard errors, by groups of related items, and intervals that cover::

    SE = s / sqrt(n)                                     s: sample standard deviation of n scores
    SE = sqrt(C / (C - 1) · Σ_c (Σ_{i in c} (x_i - x̄))²) / n      C groups of related items

Related items, such as questions on one passage, rise and fall together, so they count as fewer
independent ones. The model is treated as given: another seed or prompt is another variation.

Sources: Miller 2024, "Adding Error Bars to Evals", appendix A; Wilson 1927; Bowyer et al. 2025,
arXiv 2503.01747; Franco et al. 2019.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from course_pkg.common.arguments import require_between, require_integer, require_number

if (
    TYPE_CHECKING
):  # numpy and scipy are imported by what needs them: a browser has Wilson's interval
    import numpy as np

FEWEST_UNITS = 5  # from fewer independent items or groups, a spread is hardly known


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval: low and high at a level such as 0.95."""

    estimate: float
    low: float
    high: float
    level: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"


def standard_error(scores: Sequence[float], groups: Sequence[Hashable] | None = None) -> float:
    """The standard deviation of the mean from one sample of items, or of groups, to the next."""
    import numpy as np

    values = score_array(scores)
    deviations = values - values.mean()
    if groups is None:
        parts = deviations
    else:
        member = group_numbers(groups, len(values))
        parts = np.bincount(member, deviations)  # (C,), summed within each group
    count = len(parts)
    if count < 2:
        raise ValueError("all items are in one group: an error needs two groups, better 20")
    return math.sqrt(count / (count - 1) * float(parts @ parts)) / len(values)


def normal_interval(
    scores: Sequence[float], groups: Sequence[Hashable] | None = None, level: float = 0.95
) -> Interval:
    """The mean ± 1.96 standard errors (at 95%), as most tools report; prefer `mean_interval`."""
    error = standard_error(scores, groups)
    mean = float(score_array(scores).mean())
    margin = normal_quantile(level) * error
    return Interval(mean, mean - margin, mean + margin, level)


def wilson_interval(correct: int, total: int, level: float = 0.95) -> Interval:
    """Wilson's interval for a share of right answers: all shares that a z-test does not reject.

    The bounds solve (x̄ - p)² = z² p (1 - p) / n for p, so they are in [0, 1].

    >>> print(wilson_interval(5, 5))
    1.000 [0.566, 1.000]
    """
    require_integer(total, "total")
    require_integer(correct, "correct", 0)
    if correct > total:
        raise ValueError(f"{correct} of {total} answers are correct: correct can't exceed total")
    return _wilson(correct / total, total, normal_quantile(level), level)


def t_interval(
    scores: Sequence[float], groups: Sequence[Hashable] | None = None, level: float = 0.95
) -> Interval:
    """The mean ± t standard errors, with one degree of freedom less than groups, or than items."""
    values = score_array(scores)
    units = independent_units(len(values), groups)
    mean = float(values.mean())
    margin = t_quantile(units - 1, level) * standard_error(values, groups)
    return Interval(mean, mean - margin, mean + margin, level)


def mean_interval(
    scores: Sequence[float], groups: Sequence[Hashable] | None = None, level: float = 0.95
) -> Interval:
    """The mean score with an interval that fits the scores: the one to report.

    Scores that are all 0 or 1 get Wilson's interval, other scores `t_interval`. Right-or-wrong
    scores in groups get Wilson's interval with t in place of z, and with the effective number of
    items (Franco et al. 2019), x̄(1 - x̄)/SE² but at most n, in place of n.

    >>> print(mean_interval([1, 1, 0, 1, 0, 1, 1, 0, 1, 1]))
    0.700 [0.397, 0.892]
    """
    import numpy as np

    values = score_array(scores)
    if not np.all((values == 0) | (values == 1)):
        return t_interval(values, groups, level)
    count = len(values)
    if groups is None:
        return wilson_interval(int(values.sum()), count, level)
    units = independent_units(count, groups)
    mean = float(values.mean())
    variance = mean * (1 - mean)
    if variance == 0:
        effective = float(units)
    else:
        effective = variance / max(standard_error(values, groups) ** 2, variance / count)
    return _wilson(mean, effective, t_quantile(units - 1, level), level)


def score_array(scores: Sequence[float], name: str = "scores", least: int = 2) -> "np.ndarray":
    """The scores as an array of floats, (n,); ValueError unless there are enough, all finite."""
    import numpy as np

    values = np.asarray(scores, float)
    if values.ndim != 1 or len(values) < least:
        raise ValueError(
            f"{name} has shape {values.shape}; give a list of {least} or more numbers, one per item"
        )
    if not np.isfinite(values).all():
        place = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(
            f"{name}[{place}] is {values[place]}; give such an item a score, or leave it out"
        )
    return values


def group_numbers(groups: Sequence[Hashable], items: int) -> "np.ndarray":
    """The groups of all items, numbered 0, 1, … in order of appearance, (items,)."""
    import numpy as np

    if len(groups) != items:
        raise ValueError(f"{items} scores, but {len(groups)} groups: give the group of each item")
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return np.array([numbers[group] for group in groups])


def independent_units(items: int, groups: Sequence[Hashable] | None = None) -> int:
    """How many groups there are, or items if groups is None; ValueError for fewer than 5."""
    units = items if groups is None else int(group_numbers(groups, items).max()) + 1
    if units < FEWEST_UNITS:
        raise ValueError(
            f"{units} independent items or groups: give {FEWEST_UNITS} or more, better 20"
        )
    return units


def _wilson(mean: float, count: float, quantile: float, level: float) -> Interval:
    """Wilson's interval of a share; `count` may be an effective number of items."""
    shrink = quantile**2 / count
    center = (mean + shrink / 2) / (1 + shrink)
    margin = quantile / (1 + shrink) * math.sqrt((mean * (1 - mean) + shrink / 4) / count)
    low = 0.0 if mean == 0 else center - margin
    high = 1.0 if mean == 1 else center + margin
    return Interval(mean, low, high, level)


def normal_quantile(level: float) -> float:
    """z such that a standard normal number is in [-z, z] with probability `level`."""
    require_between(level, "level", 0, 1)
    return NormalDist().inv_cdf((1 + level) / 2)


def t_tails(value: float, freedom: int) -> float:
    """The probability that Student's t is below -value or above value: a two-sided p-value."""
    from scipy.special import stdtr

    require_integer(freedom, "freedom")
    if not require_number(value, "value") >= 0:
        raise ValueError(f"value must be at least 0, got {value}")
    return 2 * float(stdtr(freedom, -value))


def t_quantile(freedom: int, level: float) -> float:
    """t such that Student's t is in [-t, t] with probability `level`; freedom: at least 1."""
    from scipy.special import stdtrit

    require_integer(freedom, "freedom")
    require_between(level, "level", 0, 1)
    return float(stdtrit(freedom, (1 + level) / 2))


def binomial_probabilities(trials: int, probability: "float | np.ndarray") -> "np.ndarray":
    """P(k successes in `trials`) for k = 0, …, trials, last axis; probability: a number, or (m,).

    >>> binomial_probabilities(2, 0.5).round(3).tolist()
    [0.25, 0.5, 0.25]
    """
    import numpy as np
    from scipy.stats import binom

    require_integer(trials, "trials")
    shares = np.asarray(probability, float)[..., None]
    if not np.all((shares >= 0) & (shares <= 1)):
        raise ValueError(f"probability must be in [0, 1], got {probability}")
    return binom.pmf(np.arange(trials + 1), trials, shares)
