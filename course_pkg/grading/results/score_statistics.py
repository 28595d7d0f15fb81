"""Statistics of a class: mean, median, quartiles, and the share earned of every question.

Chapter: appendix/for-instructors.
"""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from .records import Record


@dataclass(frozen=True)
class Share:
    """The mean share of a question's points that a class earned, 0 to 1."""

    question: str
    points: int
    share: float


@dataclass(frozen=True)
class Statistics:
    """Automatic scores of a class, in points. lower, upper: quartiles. most: points possible."""

    count: int
    mean: float
    median: float
    lower: float
    upper: float
    most: float
    shares: tuple[Share, ...]


def score_statistics(records: Iterable[Record]) -> Statistics | None:
    """The statistics of a class; None without records. Records without a score are left out.

    >>> score_statistics([]) is None
    True
    """
    counted = [record for record in records if record.state.has_score]
    if not counted:
        return None
    scores = [record.score for record in counted]
    quartiles = (
        statistics.quantiles(scores, n=4, method="inclusive") if len(scores) > 1 else scores * 3
    )
    earned: dict[str, list[float]] = {}
    points = {q.question: q.points for record in counted for q in record.questions}
    for record in counted:
        for q in record.questions:
            earned.setdefault(q.question, []).append(q.earned / q.points if q.points else 0.0)
    shares = tuple(Share(name, points[name], statistics.fmean(e)) for name, e in earned.items())
    return Statistics(
        len(scores),
        statistics.fmean(scores),
        statistics.median(scores),
        quartiles[0],
        quartiles[2],
        max(record.max_score for record in counted),
        shares,
    )
