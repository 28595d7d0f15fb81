"""The distributions behind error bars: normal, Student's t, and binomial.

scipy is imported by what needs it: a browser computes shares and their intervals without it.
"""

from statistics import NormalDist
from typing import TYPE_CHECKING

from course_pkg.common.arguments import require_between, require_integer, require_number

if TYPE_CHECKING:
    import numpy as np


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
