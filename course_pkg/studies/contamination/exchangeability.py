"""Does a model prefer the order in which a test set was published? An exact test of that.

If the items were put into their order at random, and the model has never seen that order, then all
orders are equally likely to be its favorite. A model that was trained on the file finds the
published order more probable than others, because it has read which item follows which. The same
holds for the options of a question, if their order was drawn at random.

The items are cut into shards. For each shard, the model scores the published order and some others.
Without contamination, the published one is equally likely to be any of these, in each shard
independently. So there are (1 + others) ** shards equally likely ways in which it could have been
placed, and

    p = the share of these ways whose sum is at least the observed one.

This is exact: no normal approximation, and no assumption on the model. It needs the *order* to have
been drawn at random. A file that is sorted by subject breaks the test: related items next to each
other are more probable under any model.

Sources: Oren et al. 2023, "Proving Test Set Contamination in Black Box Language Models" (arXiv
2310.17623), sections 3.1 and 3.2; they compare the shards by a t-test, which is here as
`order_t_test`. Phipson and Smyth 2010, on p-values that are never 0.
Chapter: evaluation/contamination.
"""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course_pkg.common.arguments import require_integer, require_list
from course_pkg.evaluation.statistics import t_tails

MOST_SUMS = 2**21  # of half of the shards: all ways are counted in pairs of halves
DRAWS = 99_999  # where there are more ways


@dataclass(frozen=True)
class OrderTest:
    """How much more probable the published order is.

    gain: its log-probability minus the mean of the other orders', per shard, in nats. p_value: of
    a gain at least this large, if the published order is one of many. ways: how many equally likely
    ones were counted, or drawn if not exact. smallest: the least p-value that was possible.
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
    """The given order of `count` things, then `others` different ones, drawn at random.

    All of them if there are no more. Raises ValueError for fewer than two things or no others.

    >>> draw_orders(3, others=2)
    [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    >>> len(draw_orders(3, others=100))
    6
    """
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

    scores: log-probabilities, (shards, orders); the first column is the published order. Each shard
    may have other orders than the rest, but as many. Up to about 4·10¹² ways are all counted;
    beyond that, ways are drawn with the seed, and the p-value is (1 + hits) / (1 + draws), which is
    also valid. Equal sums count as at least as large. Raises ValueError for an empty or ragged
    table, a single order, or a score that isn't finite.

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
    """The one-sided p-value of Student's t over shards: is the mean gain above 0?

    scores: as for `order_test`. It can be smaller than any that is possible there, because it
    assumes that the gains of shards are normal. Raises ValueError as there, and for one shard.
    Source: Oren et al. 2023, section 3.2, algorithm 1.

    >>> round(order_t_test([[-1.0, -2.0], [-1.0, -1.5], [-1.0, -2.5]]), 4)
    0.0371
    """
    table = _table(scores)
    gains = table[:, 0] - table[:, 1:].mean(axis=1)  # (shards,)
    require_integer(len(gains), "shards", 2)
    error = float(gains.std(ddof=1)) / math.sqrt(len(gains))
    mean = float(gains.mean())
    if error == 0:
        return 0.0 if mean > 0 else 1.0
    half = t_tails(abs(mean) / error, len(gains) - 1) / 2
    return half if mean > 0 else 1 - half


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
