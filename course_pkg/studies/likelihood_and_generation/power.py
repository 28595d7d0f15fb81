"""How many items show a difference? To be answered before a run, not after it.

A test at level α misses a true difference δ with probability 1 - power. With the variance v of one
item's difference, so that SE² = v / n,

    n = (z_{1-α/2} + z_power)² · v / δ²

v is p_a(1 - p_a) + p_b(1 - p_b) if each run answers items of its own. On the same items it is
d - δ², where d is the share of items on which the runs disagree: only these differ. Half the
difference takes four times the items.

It is an approximation by the normal distribution. McNemar's exact test needs about 2 / δ items more
(computed in a few settings). Items in groups need more by the ratio of variances,
(clustered SE / plain SE)².

Sources: Miller 2024, "Adding Error Bars to Evals", on power analysis; Connor 1987, "Sample Size for
Testing Differences in Proportions for the Paired-Sample Design".
Chapter: evaluation/likelihood-and-generation.
"""

import math
from statistics import NormalDist

from course_pkg.common.arguments import require_between, require_integer
from course_pkg.evaluation.statistics import normal_quantile

NORMAL = NormalDist()


def unpaired_variance(baseline: float, system: float) -> float:
    """The variance of a difference between two right-or-wrong scores on items of their own.

    baseline, system: the shares of right answers, each in [0, 1). Raises ValueError otherwise.

    >>> round(unpaired_variance(0.60, 0.65), 4)
    0.4675
    """
    require_between(baseline, "baseline", 0, 1, closed=True)
    require_between(system, "system", 0, 1, closed=True)
    return baseline * (1 - baseline) + system * (1 - system)


def paired_variance(difference: float, disagreement: float) -> float:
    """The variance of a difference between two right-or-wrong scores on the same item.

    difference: of the shares of right answers. disagreement: the share of items that exactly one
    run gets right, between abs(difference) and 1. Raises ValueError otherwise.
    Source: the variance of a number that is 1, 0 or -1.

    >>> round(paired_variance(0.05, disagreement=0.15), 4)
    0.1475
    """
    require_between(difference, "difference", -1, 1)
    require_between(disagreement, "disagreement", 0, 1)
    if disagreement < abs(difference):
        raise ValueError(
            f"disagreement is {disagreement}, but a difference of {difference} needs at least "
            f"{abs(difference)}"
        )
    return disagreement - difference**2


def items_needed(
    difference: float, variance: float, *, power: float = 0.8, alpha: float = 0.05
) -> int:
    """The items that a two-sided test at level alpha needs to find the difference so often.

    difference: of the mean scores, not 0. variance: of one item's difference, by the functions
    above, or from a pilot run (n · SE²). power: the share of experiments that find it. Raises
    ValueError for a difference or variance of 0, or unless power and alpha are in (0, 1).
    Source: Miller 2024, on power analysis, with one answer per item.

    >>> items_needed(0.05, unpaired_variance(0.60, 0.65))
    1468
    >>> items_needed(0.05, paired_variance(0.05, disagreement=0.15))
    464
    """
    require_between(abs(difference), "the absolute difference", 0, math.inf)
    return math.ceil(_items(difference, variance, power, alpha))


def detectable_difference(
    items: int, variance: float, *, power: float = 0.8, alpha: float = 0.05
) -> float:
    """The smallest difference that so many items find with this power: the inverse of the above.

    >>> round(detectable_difference(464, 0.1475), 4)
    0.05
    """
    require_integer(items, "items")
    return math.sqrt(_items(1.0, variance, power, alpha) / items)


def _items(difference: float, variance: float, power: float, alpha: float) -> float:
    require_between(variance, "variance", 0, math.inf)
    require_between(power, "power", 0, 1)
    require_between(alpha, "alpha", 0, 1)
    quantiles = normal_quantile(1 - alpha) + NORMAL.inv_cdf(power)
    return quantiles**2 * variance / difference**2
