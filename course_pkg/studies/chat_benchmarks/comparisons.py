"""Comparisons judged in both orders: outcomes, win rates, and what they say about the judge.

Two turns of a question are one group. Sources: Zheng et al. 2023, section 3.3; Li et al. 2023.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from course_pkg.common.arguments import require_choice
from course_pkg.evaluation.statistics import FEWEST_UNITS, Interval, mean_interval, t_interval

OutcomeRule = Literal["agree", "average"]
ELO_SCALE = 400 / math.log(10)  # points of an Elo rating for one unit of log-odds


@dataclass(frozen=True)
class Comparison:
    """Two answerers on one turn of one question, judged in both orders.

    Attributes:
        question: its id, the group of its turns.
        as_a, as_b: how much `first` is preferred when shown as answer A, as B, in [0, 1]; None if
            the judge gave no verdict.
        first_length, second_length: in characters.
    """

    question: str
    turn: int
    first: str
    second: str
    as_a: float | None
    as_b: float | None
    first_length: int
    second_length: int

    def outcome(self, rule: OutcomeRule = "agree") -> float | None:
        """What the first answerer gets, in [0, 1]; None if a verdict is missing.

        Args:
            rule: "agree": 1 or 0 if both orders prefer the same answerer, else 0.5. "average": the
                mean of the two preferences.
        """
        require_choice(rule, "rule", ("agree", "average"))
        if self.as_a is None or self.as_b is None:
            return None
        if rule == "average":
            return (self.as_a + self.as_b) / 2
        if self.as_a > 0.5 and self.as_b > 0.5:
            return 1.0
        return 0.0 if self.as_a < 0.5 and self.as_b < 0.5 else 0.5


@dataclass(frozen=True)
class JudgedMatch:
    """A comparison's result. question: the group of related ones; None: each is its own group.

    outcome: 1 if `first` wins, 0.5 for a tie, 0 if it loses, or a probability; None: no verdict.
    """

    first: str
    second: str
    outcome: float | None
    question: str | None = None


def matches_of(comparisons: Iterable[Comparison]) -> list[JudgedMatch]:
    """One match for each comparison, with its outcome."""
    return [
        JudgedMatch(pair.first, pair.second, pair.outcome(), pair.question) for pair in comparisons
    ]


def checked_matches(matches: Sequence[JudgedMatch]) -> tuple[list[JudgedMatch], int]:
    """The matches that have an outcome, and how many have none."""
    kept = []
    for number, match in enumerate(matches):
        if match.first == match.second:
            raise ValueError(f"match {number} is {match.first!r} against itself: leave it out")
        if match.outcome is None:
            continue
        if math.isnan(match.outcome) or not 0 <= match.outcome <= 1:
            raise ValueError(f"match {number} has the outcome {match.outcome}: give [0, 1] or None")
        kept.append(match)
    if not kept:
        raise ValueError("no match has an outcome: give at least one with a number in [0, 1]")
    return kept, len(matches) - len(kept)


def names_of(matches: Iterable[JudgedMatch]) -> tuple[str, ...]:
    """Everybody who played, in order of appearance."""
    return tuple(dict.fromkeys(name for match in matches for name in (match.first, match.second)))


@dataclass(frozen=True)
class WinRate:
    """The mean outcome, and how many outcomes are above, at and below 0.5, or missing."""

    interval: Interval
    wins: int
    ties: int
    losses: int
    failed: int

    @property
    def bounds(self) -> tuple[float, float]:
        """The win rate if all comparisons without a verdict were lost, and if all were won."""
        judged = self.wins + self.ties + self.losses
        points = self.interval.estimate * judged
        total = judged + self.failed
        return points / total, (points + self.failed) / total


def win_rate(outcomes: Sequence[float | None], groups: Sequence[Hashable] | None = None) -> WinRate:
    """The mean of outcomes in [0, 1], None without a verdict, with an interval by groups."""
    if groups is not None and len(groups) != len(outcomes):
        raise ValueError(f"{len(outcomes)} outcomes, but {len(groups)} groups: give each one's")
    values: list[float] = []
    kept: list[Hashable] = []
    for place, outcome in enumerate(outcomes):
        if outcome is None:
            continue
        if math.isnan(outcome) or not 0 <= outcome <= 1:
            raise ValueError(f"outcomes[{place}] is {outcome}: give a number in [0, 1], or None")
        values.append(float(outcome))
        kept.append(place if groups is None else groups[place])
    interval = mean_interval(values, None if groups is None else kept)
    low, high = max(0.0, interval.low), min(1.0, interval.high)
    return WinRate(
        Interval(interval.estimate, low, high, interval.level),
        wins=sum(value > 0.5 for value in values),
        ties=values.count(0.5),
        losses=sum(value < 0.5 for value in values),
        failed=len(outcomes) - len(values),
    )


@dataclass(frozen=True)
class JudgeBias:
    """Shares of a judge's verdicts with intervals by questions.

    Attributes:
        flips: one order prefers one answer, the other order the other.
        first_place: the mean preference for what is shown first; 0.5 without a position bias.
        longer: how often the longer answer is preferred, which may be right; None if too few tell.
        failed: comparisons without a verdict in one of the orders, left out.
    """

    flips: Interval
    first_place: Interval
    longer: Interval | None
    failed: int


def judge_bias(comparisons: Sequence[Comparison]) -> JudgeBias:
    """Measure a judge on comparisons that were judged in both orders."""
    judged = [comparison for comparison in comparisons if comparison.outcome() is not None]
    questions = [comparison.question for comparison in judged]
    flips = [float((comparison.as_a - 0.5) * (comparison.as_b - 0.5) < 0) for comparison in judged]
    first = [(comparison.as_a + 1 - comparison.as_b) / 2 for comparison in judged]
    longer = []
    told = []
    for comparison in judged:
        mean = comparison.outcome("average")
        if comparison.first_length != comparison.second_length and mean != 0.5:
            longer.append(
                float((comparison.first_length > comparison.second_length) == (mean > 0.5))
            )
            told.append(comparison.question)
    place = t_interval(first, questions)
    return JudgeBias(
        mean_interval(flips, questions),
        Interval(place.estimate, max(0.0, place.low), min(1.0, place.high), place.level),
        mean_interval(longer, told) if len(set(told)) >= FEWEST_UNITS else None,
        len(comparisons) - len(judged),
    )
