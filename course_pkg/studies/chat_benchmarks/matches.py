"""A match: who met whom on which question, and what the first one got.

A comparison has the verdicts of both orders, and a rule makes one outcome of them. Elo and
Bradley–Terry take lists of matches. A match without a verdict has the outcome None; it is counted
and left out. Chapter: evaluation/chat-benchmarks.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from course_pkg.common.arguments import require_choice, require_list

Rule = Literal["agree", "average"]
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

    def outcome(self, rule: Rule = "agree") -> float | None:
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


def matches_of(comparisons: Iterable[Comparison], rule: Rule = "agree") -> list[Match]:
    """One match for each comparison, under a rule for the two orders.

    >>> comparison = Comparison("q1", 2, "x", "y", 1.0, 1.0, 80, 60)
    >>> matches_of([comparison])
    [Match(first='x', second='y', outcome=1.0, question='q1')]
    """
    return [
        Match(each.first, each.second, each.outcome(rule), each.question) for each in comparisons
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
