"""The three distributions behind error bars: normal, Student's t, and binomial.

They are short in closed form, so the course doesn't need scipy for them; the tests compare them
with scipy. Student's t is here for whole degrees of freedom only.

Sources: Abramowitz and Stegun 1964, equations 26.7.3 and 26.7.4, for Student's t.
Chapter: evaluation/likelihood-and-generation.
"""

import math
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

from course_pkg.common.arguments import require_between, require_integer, require_number

if TYPE_CHECKING:  # imported by what needs it: the normal distribution doesn't
    import numpy as np

STEPS = 60  # of a bisection: the interval shrinks by 2^60


def normal_quantile(level: float) -> float:
    """z such that a standard normal number is in [-z, z] with probability `level`.

    Raises ValueError unless 0 < level < 1.

    >>> round(normal_quantile(0.95), 3)
    1.96
    """
    require_between(level, "level", 0, 1)
    return NormalDist().inv_cdf((1 + level) / 2)


def t_probability(value: float, freedom: int) -> float:
    """The probability that Student's t, with `freedom` degrees of freedom, is in [-value, value].

    With cos²θ = freedom / (freedom + value²), it is a finite sum of powers of cos²θ. Raises
    ValueError unless value >= 0 and freedom is an integer of at least 1.
    Source: Abramowitz and Stegun 1964, equations 26.7.3 and 26.7.4.

    >>> round(t_probability(1.0, 1), 3), round(t_probability(2.262, 9), 3)
    (0.5, 0.95)
    """
    import numpy as np

    require_integer(freedom, "freedom")
    require_between(value, "value", 0, math.inf, closed=True)
    square = freedom / (freedom + value**2)
    sine = math.sqrt(1 - square)
    first = 2 + freedom % 2  # the factors are 1/2, 3/4, … or 2/3, 4/5, …
    lower = np.arange(first, freedom, 2)
    terms = np.cumprod((lower - 1) / lower * square)
    total = 1 + float(terms.sum())
    if freedom % 2 == 0:
        return sine * total
    angle = math.atan(value / math.sqrt(freedom))
    if freedom == 1:
        return 2 / math.pi * angle
    return 2 / math.pi * (angle + sine * math.sqrt(square) * total)


@lru_cache(maxsize=256)
def t_quantile(freedom: int, level: float) -> float:
    """t such that Student's t is in [-t, t] with probability `level`; arguments as above.

    It is larger than the normal quantile, since a standard error from few values is uncertain.

    >>> round(t_quantile(9, 0.95), 3), round(t_quantile(99, 0.95), 3)
    (2.262, 1.984)
    """
    require_between(level, "level", 0, 1)
    low = 0.0
    high = 1.0
    while t_probability(high, freedom) < level:
        high *= 2
    for _ in range(STEPS):
        middle = (low + high) / 2
        if t_probability(middle, freedom) < level:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def binomial_probabilities(trials: int, probability: "float | np.ndarray") -> "np.ndarray":
    """P(k successes in `trials`) for k = 0, …, trials.

    probability: of a success, one number or an array (m,). Returns (trials + 1,), or
    (m, trials + 1). Raises ValueError unless trials >= 1 and 0 <= probability <= 1.

    >>> binomial_probabilities(2, 0.5).tolist()
    [0.25, 0.5, 0.25]
    """
    import numpy as np

    require_integer(trials, "trials")
    if not isinstance(probability, np.ndarray):
        require_number(probability, "probability")
    p = np.asarray(probability, float)[..., None]
    if not np.all((p >= 0) & (p <= 1)):
        raise ValueError(f"probability must be in [0, 1], got {probability}")
    k = np.arange(trials + 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 · log 0 is 0 here
        successes = np.where(k == 0, 0.0, k * np.log(p))
        failures = np.where(k == trials, 0.0, (trials - k) * np.log1p(-p))
    return np.exp(_log_choices(trials) + successes + failures)


@lru_cache(maxsize=64)
def _log_choices(trials: int) -> "np.ndarray":
    """log of trials! / (k! (trials - k)!) for all k, (trials + 1,)."""
    import numpy as np

    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])
    return factorials[-1] - factorials - factorials[::-1]
