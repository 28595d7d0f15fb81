"""One student's row in the report on a class.

Chapter: appendix/for-instructors.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..contract.question_record import notes
from ..results.points import Points
from ..results.records import Record
from ..results.states import State
from ..submissions.roster import Person


@dataclass(frozen=True)
class Row:
    """What is known about one student: the record of the grader, and the gradebook's points.

    points is None for a student who has no submission in the gradebook.
    """

    person: Person
    record: Record | None
    points: Points | None

    @property
    def student(self) -> str:
        """The student's id."""
        return self.person.id

    @property
    def state(self) -> str:
        """The state of the record, or why there is none.

        >>> Row(Person("ada"), None, None).state
        'no-submission'
        """
        if self.record is not None:
            return str(self.record.state)
        return "no-submission" if self.points is None else "no-record"

    @property
    def waits(self) -> bool:
        """Whether the submission waits for a GPU; the points are then those of an earlier one."""
        return self.record is not None and self.record.state == State.WAITING

    @property
    def reason(self) -> str:
        """Why the state is not "graded", and numbers that fit another name."""
        if self.record is not None:
            texts = self.record.reason, *notes(self.record.questions)
            return "; ".join(text for text in texts if text)
        if self.points is None:
            return ""
        return "the gradebook has points, but there is no record: another program wrote them"

    @property
    def score(self) -> float | None:
        """The total; None if there is none, or if it says nothing about the student's work."""
        if self.points is None or (self.record and not self.record.state.has_score):
            return None
        return self.points.score


def points_by_student(rows: Iterable[Row]) -> Mapping[str, Points]:
    """The points of every row that has some."""
    return {row.student: row.points for row in rows if row.points is not None}
