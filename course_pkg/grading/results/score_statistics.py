"""Statistics of a class: mean, median, quartiles, and the share earned of every question.

Chapter: appendix/for-instructors.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .points import Points
from .records import Record
from .states import State


@dataclass(frozen=True)
class Share:
    """The mean share of a question's points that a class earned, 0 to 1."""

    question: str
    points: int
    share: float


@dataclass(frozen=True)
class Statistics:
    """Scores of a class, in points. lower, upper: quartiles. most: points possible."""

    count: int
    mean: float
    median: float
    lower: float
    upper: float
    most: float
    shares: tuple[Share, ...]


def score_statistics(
    records: Iterable[Record], points: Mapping[str, Points] | None = None
) -> Statistics | None:
    """The statistics of a class; None without records. Left out are records without a score, and
    refused submissions.

    points: of the gradebook, by student: scores are then totals, and students who are not in it are
    left out. Without them, scores are automatic.

    >>> score_statistics([]) is None
    True
    """
    counted = [r for r in records if r.state.has_score and r.state != State.REFUSED]
    if points is not None:
        counted = [record for record in counted if record.student in points]
    if not counted:
        return None
    known = points or {}
    scores = [known.get(record.student, record).score for record in counted]
    quartiles = (
        statistics.quantiles(scores, n=4, method="inclusive") if len(scores) > 1 else scores * 3
    )
    earned: dict[str, list[float]] = {}
    worth = {q.question: q.points for record in counted for q in record.questions}
    for record in counted:
        for q in record.questions:
            earned.setdefault(q.question, []).append(q.earned / q.points if q.points else 0.0)
    shares = tuple(Share(name, worth[name], statistics.fmean(e)) for name, e in earned.items())
    return Statistics(
        len(scores),
        statistics.fmean(scores),
        statistics.median(scores),
        quartiles[0],
        quartiles[2],
        max(known.get(record.student, record).max_score for record in counted),
        shares,
    )
