"""Win rates: the mean outcome against a baseline, with an interval by questions.

A win is 1, a tie 0.5, a loss 0; a judge that gives probabilities gives outcomes in between. Two
turns of a question are one group, so the interval counts questions. Comparisons without a verdict
are left out of the mean and counted; `bounds` says how far they could move it.

Source: Li et al. 2023, AlpacaEval (the win rate). Chapter: evaluation/chat-benchmarks.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from course_pkg.common.arguments import require_list
from course_pkg.evaluation.statistics import Interval, mean_interval


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
