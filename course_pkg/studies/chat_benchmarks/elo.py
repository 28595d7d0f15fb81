"""Elo's ratings: a running score that each match moves, and that depends on the order of matches.

    expected = 1 / (1 + 10^((R_second - R_first) / 400)),   R_first += K (outcome - expected)

The second loses what the first gains. K decides how fast ratings move: it is also how much chance
they keep. Elo suits players whose strength changes. A model's answers don't; `bt_model` uses all
matches at once.

Sources: Elo 1978; Boubdir et al. 2023, "Elo Uncovered", on the order.
Chapter: evaluation/chat-benchmarks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course_pkg.common.arguments import require_between, require_integer
from course_pkg.studies.chat_benchmarks.matches import Match, checked_matches, names_of


@dataclass(frozen=True)
class EloRatings:
    """history: the ratings before the first match and after each one, (matches + 1, m)."""

    names: tuple[str, ...]
    history: np.ndarray
    failed: int

    @property
    def ratings(self) -> dict[str, float]:
        """The ratings after the last match."""
        return dict(zip(self.names, self.history[-1].tolist(), strict=True))


def elo_ratings(
    matches: Sequence[Match], *, k: float = 32.0, start: float = 1000.0, scale: float = 400.0
) -> EloRatings:
    """Play the matches in the given order.

    k: points that a match can move at most. start: everybody's first rating. scale: points for odds
    of 10 to 1. Matches without a verdict are skipped and counted. Raises ValueError unless k and
    scale are above 0.
    Source: Elo 1978, section 1.6.

    >>> games = [Match("x", "y", 1), Match("x", "y", 0)]
    >>> {name: round(r, 2) for name, r in elo_ratings(games).ratings.items()}
    {'x': 998.53, 'y': 1001.47}
    """
    require_between(k, "k", 0, math.inf)
    require_between(scale, "scale", 0, math.inf)
    kept, failed = checked_matches(matches)
    names = names_of(kept)
    number = {name: place for place, name in enumerate(names)}
    history = np.empty((len(kept) + 1, len(names)))
    ratings = np.full(len(names), float(start))
    history[0] = ratings
    for row, match in enumerate(kept, start=1):
        first, second = number[match.first], number[match.second]
        gap = (ratings[second] - ratings[first]) / scale
        expected = 1 / (1 + 10**gap)
        moved = k * (match.outcome - expected)
        ratings[first] += moved
        ratings[second] -= moved
        history[row] = ratings
    return EloRatings(names, history, failed)


def elo_by_order(
    matches: Sequence[Match], *, orders: int = 100, seed: int = 0, **options
) -> np.ndarray:
    """Final ratings of the same matches in random orders, (orders, m), as in `names_of`.

    options: those of `elo_ratings`. The spread of a column is due to the order alone.
    Source: Boubdir et al. 2023, "Elo Uncovered: Robustness and Best Practices".

    >>> games = [Match("x", "y", 1), Match("x", "y", 0), Match("x", "y", 1)]
    >>> elo_by_order(games, orders=5).shape
    (5, 2)
    """
    require_integer(orders, "orders")
    kept, _ = checked_matches(matches)
    names = names_of(kept)
    generator = np.random.default_rng(seed)
    found = np.empty((orders, len(names)))
    for row in range(orders):
        shuffled = [kept[place] for place in generator.permutation(len(kept))]
        ratings = elo_ratings(shuffled, **options).ratings
        found[row] = [ratings[name] for name in names]
    return found
