"""The bootstrap for any statistic of a test set: a mean, F1, a calibration error, a difference.

Draw as many items as there are, with replacement, and compute the statistic of the drawn items;
repeat. The spread of the results is the spread over samples of items. If items come in groups of
related ones, draw groups. If two runs answered the same items, compute both on the same draw:

    bootstrap_interval(lambda drawn: f1(b[drawn]) - f1(a[drawn]), items=len(a))

It can't invent what the sample lacks. With few items its percentile interval is too short: for a
share of right answers about as short as the mean ± 1.96 SE, and of no width if all are right. A
biased statistic stays biased, and becomes more so (see `calibration_intervals`).

BLEU and corpus ROUGE have bootstraps of their own, with the draws of sacrebleu, in
`metrics.significance`. Sources: Efron 1979; Efron and Tibshirani 1993, chapter 13 (percentiles).
Chapter: evaluation/likelihood-and-generation.
"""

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from course_pkg.common.arguments import require_between, require_integer
from course_pkg.evaluation.statistics import Interval, group_numbers, independent_units

Statistic = Callable[[np.ndarray], float]


def bootstrap_draws(
    statistic: Statistic,
    items: int,
    *,
    groups: Sequence[Hashable] | None = None,
    samples: int = 2000,
    seed: int = 0,
) -> np.ndarray:
    """The statistic on each drawn sample, (samples,).

    statistic: maps indices of items, (drawn,) integers with repetitions, to a number. items: how
    many there are. groups: of each item; whole groups are drawn, so a sample's size varies if
    theirs do. Raises ValueError for fewer than 5 items or groups, or if the statistic isn't finite.

    >>> scores = np.array([3.0, 5.0, 4.0, 6.0, 2.0])
    >>> draws = bootstrap_draws(lambda drawn: scores[drawn].mean(), 5)
    >>> draws.shape, 3.9 < float(draws.mean()) < 4.1
    ((2000,), True)
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
    """The statistic of all items, with the middle `level` of its bootstrap draws.

    Arguments and errors as for `bootstrap_draws`.
    Source: Efron and Tibshirani 1993, section 13.3, the percentile interval.

    >>> scores = np.array([3.0, 5.0, 4.0, 6.0, 2.0])
    >>> print(bootstrap_interval(lambda drawn: scores[drawn].mean(), 5))
    4.000 [2.800, 5.200]
    """
    require_between(level, "level", 0, 1)
    draws = bootstrap_draws(statistic, items, groups=groups, samples=samples, seed=seed)
    tail = (1 - level) / 2
    low, high = np.quantile(draws, [tail, 1 - tail]).tolist()
    return Interval(float(statistic(np.arange(items))), low, high, level)
