"""Does a model prefer the order in which a test set was published? An exact test of that.

It needs an order that was drawn at random: a file sorted by subject breaks it. Sources: Oren et al.
2023 (arXiv 2310.17623), sections 3.1 and 3.2; Phipson and Smyth 2010 (p-values are never 0).
"""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course_pkg.common.arguments import require_integer, require_list

MOST_SUMS = 2**21  # of half of the shards: all ways are counted in pairs of halves
DRAWS = 99_999  # where there are more ways


@dataclass(frozen=True)
class OrderTest:
    """How much more probable the published order is.

    Attributes:
        gain: its log-probability minus the mean of the other orders', per shard, in nats.
        p_value: of a gain at least this large, if the published order is one of many.
        ways: how many equally likely ones were counted, or drawn if not exact.
    """

    gain: float
    p_value: float
    shards: int
    orders: int
    ways: int
    exact: bool

    @property
    def smallest(self) -> float:
        """The least p-value that so many shards and orders can give."""
        return 1 / self.ways if self.exact else 1 / (1 + self.ways)


def draw_orders(count: int, others: int, seed: int = 0) -> list[tuple[int, ...]]:
    """The given order of `count` things, then `others` different ones, or all, drawn at random."""
    require_integer(count, "count", 2)
    require_integer(others, "others")
    published = tuple(range(count))
    possible = math.factorial(count) - 1
    if others >= possible:
        return list(itertools.permutations(published))
    generator = random.Random(seed)
    drawn = {published: None}  # in the order in which they were drawn
    while len(drawn) <= others:
        drawn[tuple(generator.sample(published, count))] = None
    return list(drawn)


def order_test(scores: Sequence[Sequence[float]], seed: int = 0) -> OrderTest:
    """The exact p-value of a preference for the published order.

    There are orders ** shards equally likely ways to place it; p is the share of those whose sum is
    at least the observed one. Up to about 4·10¹² are counted; beyond that, ways are drawn.

    Args:
        scores: log-probabilities, (shards, orders); the first column is the published order.

    >>> order_test([[-1.0, -2.0, -3.0], [-5.0, -4.0, -6.0]]).p_value  # sums ≥ −6: 3 of 9
    0.3333333333333333
    """
    table = _table(scores)
    shards, orders = table.shape
    gain = float((table[:, 0] - table[:, 1:].mean(axis=1)).mean())
    ranked = table - table[:, :1]  # the published order has the sum 0
    tolerance = 1e-9 * max(1.0, float(np.abs(table).max()))
    half = shards // 2
    if orders ** (shards - half) <= MOST_SUMS:
        first = np.sort(_sums(ranked[:half]))
        second = _sums(ranked[half:])
        below = np.searchsorted(first, -tolerance - second)  # sums that are too small
        ways = orders**shards
        hits = len(first) * len(second) - int(below.sum())
        return OrderTest(gain, hits / ways, shards, orders, ways, exact=True)
    generator = np.random.default_rng(seed)
    total = np.zeros(DRAWS)
    for row in ranked:
        total += row[generator.integers(orders, size=DRAWS)]
    hits = int((total >= -tolerance).sum())
    return OrderTest(gain, (1 + hits) / (1 + DRAWS), shards, orders, DRAWS, exact=False)


def order_t_test(scores: Sequence[Sequence[float]]) -> float:
    """The one-sided p-value of Student's t over shards, which assumes normal gains."""
    from scipy.stats import ttest_1samp

    table = _table(scores)
    gains = table[:, 0] - table[:, 1:].mean(axis=1)  # (shards,)
    require_integer(len(gains), "shards", 2)
    if gains.std() == 0:
        return 0.0 if gains[0] > 0 else 1.0
    return float(ttest_1samp(gains, 0, alternative="greater").pvalue)


def _sums(table: np.ndarray) -> np.ndarray:
    """All sums of one entry from each row, (orders ** rows,); the sum of no rows is 0."""
    total = np.zeros(1)
    for row in table:
        total = np.add.outer(total, row).ravel()
    return total


def _table(scores: Sequence[Sequence[float]]) -> np.ndarray:
    require_list(scores, "scores", "give a list of lists: shards, then orders")
    lengths = {len(row) for row in scores}
    if len(lengths) != 1 or min(lengths) < 2:
        raise ValueError(
            f"scores has rows of {sorted(lengths) or 'no'} orders: give at least one shard, and "
            "for each the published order and as many others, at least one"
        )
    table = np.array(scores, dtype=float)
    if not np.isfinite(table).all():
        raise ValueError("a score is NaN or infinite: check the model's log-probabilities")
    return table
