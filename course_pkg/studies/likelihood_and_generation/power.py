"""How many items show a difference? To be answered before a run, not after it::

    n = (z_{1-α/2} + z_power)² · v / δ²,  v: the variance of one item's difference

Sources: Miller 2024, "Adding Error Bars to Evals"; Connor 1987.
"""

import math
from statistics import NormalDist

from course_pkg.common.arguments import require_between, require_integer
from course_pkg.evaluation.statistics import normal_quantile

NORMAL = NormalDist()


def unpaired_variance(baseline: float, system: float) -> float:
    """The variance of a difference between right-or-wrong scores on items of their own."""
    require_between(baseline, "baseline", 0, 1, closed=True)
    require_between(system, "system", 0, 1, closed=True)
    return baseline * (1 - baseline) + system * (1 - system)


def paired_variance(difference: float, disagreement: float) -> float:
    """The variance of a difference δ on the same item: d - δ², d the share of disagreement."""
    require_between(difference, "difference", -1, 1)
    require_between(disagreement, "disagreement", 0, 1)
    if disagreement < abs(difference):
        raise ValueError(
            f"disagreement is {disagreement}, but a difference of {difference} is more"
        )
    return disagreement - difference**2


def items_needed(
    difference: float, variance: float, *, power: float = 0.8, alpha: float = 0.05
) -> int:
    """The items that a two-sided test at level alpha needs to find the difference so often.

    Args:
        variance: of one item's difference, by the functions above, or from a pilot run (n · SE²).
        power: the share of experiments that find it.

    >>> items_needed(0.05, paired_variance(0.05, disagreement=0.15))
    464
    """
    require_between(abs(difference), "the absolute difference", 0, math.inf)
    return math.ceil(_items(difference, variance, power, alpha))


def detectable_difference(
    items: int, variance: float, *, power: float = 0.8, alpha: float = 0.05
) -> float:
    """The smallest difference that so many items find with this power: the inverse of the above."""
    require_integer(items, "items")
    return math.sqrt(_items(1.0, variance, power, alpha) / items)


def _items(difference: float, variance: float, power: float, alpha: float) -> float:
    require_between(variance, "variance", 0, math.inf)
    require_between(power, "power", 0, 1)
    require_between(alpha, "alpha", 0, 1)
    quantiles = normal_quantile(1 - alpha) + NORMAL.inv_cdf(power)
    return quantiles**2 * variance / difference**2
