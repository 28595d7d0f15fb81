"""Comparisons judged in both orders: matches, win rates, and what they say about the judge.

Two rules make one outcome of the two verdicts:

    "agree"    1 if both orders prefer the first answerer, 0 if both prefer the second, else 0.5
    "average"  the mean of the two preferences

For verdicts of 0 and 1 they are the same number. They differ if a judge can also say "tie", or
gives a probability. A win is 1, a tie 0.5, a loss 0. Two turns of a question are one group, so
intervals count questions. Comparisons without a verdict have the outcome None; they are left out
and counted.

About the judge:

    flips         one order prefers one answer, the other order the other
    first place   the mean preference for whatever is shown first; 0.5 without a position bias
    longer        how often the longer answer is preferred, over both orders

The last one is no bias by itself: longer answers can be better. Compare an answer with a padded
copy of it to separate the two. For prompts and single answers, see `course_pkg.studies.judge`.

Sources: Zheng et al. 2023, section 3.3; Li et al. 2023, AlpacaEval (the win rate). Chapter:
evaluation/chat-benchmarks.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from course_pkg.common.arguments import require_choice, require_list
from course_pkg.evaluation.statistics import FEWEST_UNITS, Interval, mean_interval, t_interval

OutcomeRule = Literal["agree", "average"]
ELO_SCALE = 400 / math.log(10)  # points of an Elo rating for one unit of log-odds


@dataclass(frozen=True)
class Comparison:
    """Two answerers on one turn of one question, judged in both orders.

    as_a, as_b: how much `first` is preferred when shown as answer A, and as answer B, in [0, 1];
    None if the judge gave no verdict. lengths in characters. question: its id, the group.
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

        >>> Comparison("q", 1, "x", "y", 0.9, 0.4, 80, 60).outcome("agree")
        0.5
        >>> Comparison("q", 1, "x", "y", 0.9, 0.4, 80, 60).outcome("average")
        0.65
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
class Match:
    """outcome: 1 if `first` wins, 0.5 for a tie, 0 if it loses, or a probability; None: no verdict.

    question: the group of matches that are related; None makes the match its own group.
    """

    first: str
    second: str
    outcome: float | None
    question: str | None = None


def matches_of(comparisons: Iterable[Comparison], rule: OutcomeRule = "agree") -> list[Match]:
    """One match for each comparison, under a rule for the two orders.

    >>> comparison = Comparison("q1", 2, "x", "y", 1.0, 1.0, 80, 60)
    >>> matches_of([comparison])
    [Match(first='x', second='y', outcome=1.0, question='q1')]
    """
    return [
        Match(pair.first, pair.second, pair.outcome(rule), pair.question) for pair in comparisons
    ]


def checked_matches(matches: Sequence[Match]) -> tuple[list[Match], int]:
    """The matches that have an outcome, and how many have none.

    Raises ValueError for an outcome outside [0, 1], a match of somebody against themselves, or if
    nothing is left.
    """
    require_list(matches, "matches", "put the matches into [ ]")
    kept = []
    for number, match in enumerate(matches):
        if match.first == match.second:
            raise ValueError(f"match {number} is {match.first!r} against itself: leave it out")
        if match.outcome is None:
            continue
        if math.isnan(match.outcome) or not 0 <= match.outcome <= 1:
            raise ValueError(
                f"match {number} has the outcome {match.outcome}: give a number in [0, 1], or None"
            )
        kept.append(match)
    if not kept:
        raise ValueError("no match has an outcome: give at least one with a number in [0, 1]")
    return kept, len(matches) - len(kept)


def names_of(matches: Iterable[Match]) -> tuple[str, ...]:
    """Everybody who played, in order of appearance."""
    return tuple(dict.fromkeys(name for match in matches for name in (match.first, match.second)))


@dataclass(frozen=True)
class WinRate:
    """The mean outcome with its interval, and what it is made of.

    wins, ties, losses: outcomes above, at and below 0.5. failed: comparisons without a verdict.
    """

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


def win_rate(
    outcomes: Sequence[float | None],
    groups: Sequence[Hashable] | None = None,
    level: float = 0.95,
) -> WinRate:
    """The mean of outcomes in [0, 1], with an interval by groups of related comparisons.

    outcomes: (n,), None where the judge gave no verdict. groups: (n,), such as the questions' ids.
    Raises ValueError for an outcome outside [0, 1], lengths that differ, or, if there are groups
    or ties, fewer than 5 groups or items with a verdict.

    >>> result = win_rate([1, 1, 0.5, None, 0, 1, 1, 1], groups="aabbccdef"[:8])
    >>> print(result.interval, result.wins, result.ties, result.losses, result.failed)
    0.786 [0.419, 1.000] 5 1 1 1
    >>> [round(bound, 3) for bound in result.bounds]
    [0.688, 0.812]
    """
    require_list(outcomes, "outcomes", "put the outcomes into [ ]")
    if groups is not None and len(groups) != len(outcomes):
        raise ValueError(
            f"{len(outcomes)} outcomes, but {len(groups)} groups: give the group of each"
        )
    values: list[float] = []
    kept: list[Hashable] = []
    for place, outcome in enumerate(outcomes):
        if outcome is None:
            continue
        if math.isnan(outcome) or not 0 <= outcome <= 1:
            raise ValueError(
                f"outcomes[{place}] is {outcome}: give a number in [0, 1], or None for a failure"
            )
        values.append(float(outcome))
        kept.append(place if groups is None else groups[place])
    interval = mean_interval(values, None if groups is None else kept, level)
    low, high = max(0.0, interval.low), min(1.0, interval.high)
    return WinRate(
        Interval(interval.estimate, low, high, level),
        wins=sum(value > 0.5 for value in values),
        ties=values.count(0.5),
        losses=sum(value < 0.5 for value in values),
        failed=len(outcomes) - len(values),
    )


@dataclass(frozen=True)
class JudgeBias:
    """Shares with intervals by questions. longer: None if too few questions tell.

    failed: comparisons without a verdict in one of the orders, left out.
    """

    flips: Interval
    first_place: Interval
    longer: Interval | None
    failed: int


def judge_bias(comparisons: Sequence[Comparison], level: float = 0.95) -> JudgeBias:
    """Measure a judge on comparisons that were judged in both orders.

    Raises ValueError for verdicts on fewer than 5 questions.

    >>> sides = [(1.0, 1.0), (1.0, 0.0), (1.0, 0.0), (0.0, 0.0), (1.0, 0.0), (1.0, 1.0)]
    >>> shown = [Comparison(f"q{n}", 1, "x", "y", a, b, 9, 5) for n, (a, b) in enumerate(sides)]
    >>> bias = judge_bias(shown)
    >>> print(bias.flips, "|", bias.first_place)
    0.500 [0.123, 0.877] | 0.750 [0.463, 1.000]
    """
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
    place = t_interval(first, questions, level)
    return JudgeBias(
        mean_interval(flips, questions, level),
        Interval(place.estimate, max(0.0, place.low), min(1.0, place.high), level),
        mean_interval(longer, told, level) if len(set(told)) >= FEWEST_UNITS else None,
        len(comparisons) - len(judged),
    )
