"""The points of a submission, and the statistics of a class.

Chapter: appendix/for-instructors.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from course_pkg.grading.classroom.results.record import Record, State


@dataclass(frozen=True)
class Points:
    """The points of one submission, and when it was submitted.

    automatic: from the tests. by_hand: what an instructor added or took away. to_mark: points that
    are still to be given or reviewed. submitted: in UTC, None if unknown. late_s: seconds after the
    due date and the student's extension.
    """

    automatic: float
    by_hand: float
    late_penalty: float
    max_score: float
    to_mark: float = 0.0
    submitted: datetime | None = None
    late_s: float = 0.0

    @property
    def score(self) -> float:
        """The total, as nbgrader exports it: at least 0.

        >>> Points(20, 3, 5, 28).score
        18
        """
        return max(0, self.automatic + self.by_hand - self.late_penalty)


@dataclass(frozen=True)
class Share:
    """The mean share of a question's points that a class earned, 0 to 1."""

    question: str
    points: int
    share: float


@dataclass(frozen=True)
class Statistics:
    """Scores of a class, in points. lower, upper: quartiles. most: points possible."""

    scores: tuple[float, ...]
    mean: float
    median: float
    lower: float
    upper: float
    most: float
    shares: tuple[Share, ...]


def score_statistics(
    records: Iterable[Record], points: Mapping[str, Points] | None = None
) -> Statistics | None:
    """The statistics of a class, without refused submissions and records without a score.

    points: of the gradebook, by student: scores are then totals, and students who are not in it are
    left out. Without them, scores are automatic. None if nobody is left.

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
        tuple(scores),
        statistics.fmean(scores),
        statistics.median(scores),
        quartiles[0],
        quartiles[2],
        max(known.get(record.student, record).max_score for record in counted),
        shares,
    )
