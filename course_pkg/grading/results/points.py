"""The points of a submission: automatic, by hand, late penalty, and their total.

The gradebook knows them (gradebook/points.py reads them there).

Chapter: appendix/for-instructors.
"""

from dataclasses import dataclass
from datetime import datetime


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
