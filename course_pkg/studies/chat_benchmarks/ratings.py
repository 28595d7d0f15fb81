"""Ratings from matches: Bradley–Terry, from all of them at once, and Elo, one after the other.

Sources: Bradley and Terry 1952; Ford 1957 (when the estimate exists); Chiang et al. 2024, section 4
(sandwich); Elo 1978; Boubdir et al. 2023 (order).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.sparse.csgraph import breadth_first_order

from course_pkg.common.arguments import require_between, require_choice, require_integer
from course_pkg.evaluation.statistics import Interval, normal_quantile, t_quantile
from course_pkg.studies.chat_benchmarks.comparisons import (
    ELO_SCALE,
    JudgedMatch,
    checked_matches,
    names_of,
)
from course_pkg.studies.chat_benchmarks.logistic import LogisticFit, fit_logistic


@dataclass(frozen=True)
class BradleyTerry:
    """Strengths in log-odds with mean 0, (m,), and their covariance, (m, m)."""

    names: tuple[str, ...]
    strengths: np.ndarray
    covariance: np.ndarray
    quantile: float
    level: float
    failed: int

    def strength(self, name: str) -> Interval:
        """The strength of one answerer, against the mean of all."""
        return self._interval(self._unit(name))

    def difference(self, first: str, second: str) -> Interval:
        """How much stronger `first` is, in log-odds."""
        return self._interval(self._unit(first) - self._unit(second))

    def probability(self, first: str, second: str) -> Interval:
        """The probability that `first` beats `second`, a tie counted as half."""
        gap = self.difference(first, second)
        chances = [1 / (1 + math.exp(-logit)) for logit in (gap.estimate, gap.low, gap.high)]
        return Interval(*chances, self.level)

    def rating(self, name: str, mean: float = 1000.0) -> Interval:
        """The strength on Elo's scale: 400 points are odds of 10 to 1."""
        s = self.strength(name)
        low, high = mean + ELO_SCALE * s.low, mean + ELO_SCALE * s.high
        return Interval(mean + ELO_SCALE * s.estimate, low, high, self.level)

    def _unit(self, name: str) -> np.ndarray:
        if name not in self.names:
            raise ValueError(f"{name!r} played no match; those who did: {', '.join(self.names)}")
        return np.array([float(other == name) for other in self.names])

    def _interval(self, contrast: np.ndarray) -> Interval:
        estimate = float(contrast @ self.strengths)
        margin = self.quantile * math.sqrt(max(0.0, contrast @ self.covariance @ contrast))
        return Interval(estimate, estimate - margin, estimate + margin, self.level)


def bradley_terry(
    matches: Sequence[JudgedMatch],
    *,
    errors: Literal["sandwich", "fisher"] = "sandwich",
    prior: float = 0.0,
    level: float = 0.95,
) -> BradleyTerry:
    """Estimate everybody's strength from matches: P(i beats j) = σ(s_i - s_j), Σ s = 0.

    Args:
        errors: "sandwich" counts questions as independent groups, "fisher" every match.
        prior: ties added to each pair that met; above 0, connected matches have a finite estimate.
    """
    require_choice(errors, "errors", ("sandwich", "fisher"))
    require_between(prior, "prior", 0, math.inf, closed=True)
    kept, failed = checked_matches(matches)
    names = names_of(kept)
    first, second, outcomes = _arrays(kept, names)
    _require_estimable(names, first, second, outcomes, prior)
    fit, basis = _fit(len(names), first, second, outcomes, prior)
    if errors == "fisher":
        inner = fit.fisher()
        quantile = normal_quantile(level)
    else:
        groups = _groups(kept)
        inner = fit.sandwich(groups)
        quantile = t_quantile(len(set(groups)) - 1, level)
    strengths = basis @ fit.coefficients
    return BradleyTerry(names, strengths, basis @ inner @ basis.T, quantile, level, failed)


def _arrays(
    matches: Sequence[JudgedMatch], names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    number = {name: place for place, name in enumerate(names)}
    first = np.array([number[match.first] for match in matches])
    second = np.array([number[match.second] for match in matches])
    return first, second, np.array([match.outcome for match in matches], float)


def _groups(matches: Sequence[JudgedMatch]) -> list:
    """The question of each match, or a group of its own."""
    return [
        (number,) if match.question is None else match.question
        for number, match in enumerate(matches)
    ]


def _fit(
    players: int, first: np.ndarray, second: np.ndarray, outcomes: np.ndarray, prior: float
) -> tuple[LogisticFit, np.ndarray]:
    """The fit, and the basis that maps its (players - 1) coefficients to centered strengths."""
    centering = np.eye(players) - 1 / players
    basis = np.linalg.svd(centering)[0][:, : players - 1]  # columns add up to 0
    real = len(outcomes)
    weights = np.ones(real)
    if prior:
        met = np.unique(np.sort(np.stack([first, second], axis=1), axis=1), axis=0)  # (pairs, 2)
        first = np.concatenate([first, met[:, 0]])
        second = np.concatenate([second, met[:, 1]])
        outcomes = np.concatenate([outcomes, np.full(len(met), 0.5)])
        weights = np.concatenate([weights, np.full(len(met), prior)])
    fit = fit_logistic(basis[first] - basis[second], outcomes, weights=weights)
    return replace(fit, scores=fit.scores[:real]), basis


def _require_estimable(
    names: Sequence[str], first: np.ndarray, second: np.ndarray, outcomes: np.ndarray, prior: float
) -> None:
    """Ford's condition: from everybody, wins lead to everybody else."""
    scored = np.zeros((len(names), len(names)), bool)  # has i scored anything against j?
    scored[first[outcomes > 0], second[outcomes > 0]] = True
    scored[second[outcomes < 1], first[outcomes < 1]] = True
    met = scored | scored.T
    everybody = set(range(len(names)))
    island = _reached(met, 0)
    if len(island) < len(names):
        raise ValueError(
            f"{_listed(names, island)} never met {_listed(names, everybody - island)}, not even "
            "through others: add matches between the two groups"
        )
    if prior:
        return
    for start in range(len(names)):
        below = _reached(scored, start)
        if len(below) < len(names):
            above = everybody - below
            raise ValueError(
                f"{_listed(names, above)} won all matches against {_listed(names, below)}, so the "
                "difference has no finite estimate: add matches, or give prior=1, one tie for each "
                "pair"
            )


def _reached(leads: np.ndarray, start: int) -> set[int]:
    return set(breadth_first_order(leads, start, return_predecessors=False).tolist())


def _listed(names: Sequence[str], members: set[int]) -> str:
    return ", ".join(names[number] for number in sorted(members))


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
    matches: Sequence[JudgedMatch], *, k: float = 32.0, start: float = 1000.0, scale: float = 400.0
) -> EloRatings:
    """Play the matches: R_first += K (outcome - 1 / (1 + 10^((R_second - R_first) / 400))).

    >>> games = [JudgedMatch("x", "y", 1), JudgedMatch("x", "y", 0)]
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
    matches: Sequence[JudgedMatch], *, orders: int = 100, seed: int = 0, **options
) -> np.ndarray:
    """Final ratings of the same matches in random orders, (orders, m), as in `names_of`."""
    require_integer(orders, "orders")
    kept, _ = checked_matches(matches)
    names = names_of(kept)
    generator = np.random.default_rng(seed)
    final = np.empty((orders, len(names)))
    for row in range(orders):
        shuffled = [kept[place] for place in generator.permutation(len(kept))]
        ratings = elo_ratings(shuffled, **options).ratings
        final[row] = [ratings[name] for name in names]
    return final
