"""The rows of a class: the grader's record and the gradebook's points of everybody in it.

The gradebook is the only place that knows automatic points, points by hand and late penalties. The
class report, the CSV files and the export read them here, so their totals are those of nbgrader's
own export and feedback. A few queries read the whole class, because nbgrader's objects would need
several for each submission.

Chapter: appendix/for-instructors.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

from course_pkg.classroom.gradebook.gradebook import CourseGradebook
from course_pkg.classroom.gradebook.lateness import refresh_penalties, seconds_late
from course_pkg.classroom.gradebook.students import students
from course_pkg.classroom.results.class_scores import Points
from course_pkg.classroom.results.keys import secret
from course_pkg.classroom.results.record import Record, State, with_words
from course_pkg.classroom.results.store import Store
from course_pkg.classroom.submissions.roster import Person
from course_pkg.grading.contract.question_record import notes

if TYPE_CHECKING:
    from nbgrader.api import Gradebook

NO_GRADES = (0.0, 0.0, 0.0, 0.0)  # automatic, total, possible, to mark


@dataclass(frozen=True)
class Row:
    """One student's record, and points in the gradebook; None for a student without them."""

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


def class_rows(
    book: CourseGradebook, assignment: str, fresh: Iterable[Record] = ()
) -> Iterator[Row]:
    """Everybody with a record, a submission or a line in the roster, sorted by student.

    Late penalties are computed again. A row's record is read when its turn comes, so that memory
    does not grow with the class. fresh: records of this run, with words or without. They are newer
    than stored ones, or can't be stored.
    """
    refresh_penalties(book, assignment)
    points = class_points(book, assignment)
    store = Store(book.course, secret(book.course))
    people = {person.id: person for person in students(book).people}
    records = {record.student: record for record in fresh}
    for student in sorted({*store.students(assignment), *points, *people, *records}):
        record = stored = store.load(assignment, student)
        if student in records:
            record = with_words(records[student], stored)
        yield Row(people.get(student, Person(student)), record, points.get(student))


def class_points(book: CourseGradebook, assignment: str) -> dict[str, Points]:
    """The points of every submission to an assignment, by student; {} for an unknown one."""
    from nbgrader.api import Assignment, SubmittedAssignment, SubmittedNotebook
    from sqlalchemy import func, select

    when = (
        SubmittedAssignment.id,
        SubmittedAssignment.student_id,
        SubmittedAssignment.timestamp,
        SubmittedAssignment.extension,
        Assignment.duedate,
    )
    penalty = func.coalesce(func.sum(SubmittedNotebook.late_submission_penalty), 0.0)
    with book.reading():
        grades = _grades(book.nbgrader_book, assignment)
        found = book.nbgrader_book.db.execute(
            select(*when, penalty)
            .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
            .outerjoin(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
            .where(Assignment.name == assignment)
            .group_by(*when)
        )
        points = {}
        for submission, student, submitted, extension, due, late_penalty in found:
            automatic, total, possible, to_mark = grades.get(submission, NO_GRADES)
            points[student] = Points(
                automatic=float(automatic),
                by_hand=round(total - automatic, 6),
                late_penalty=float(late_penalty),
                max_score=float(possible),
                to_mark=float(to_mark),
                submitted=submitted and submitted.replace(tzinfo=UTC),
                late_s=seconds_late(submitted, due, extension),
            )
        return points


def _grades(inner: "Gradebook", assignment: str) -> dict[str, tuple[float, ...]]:
    """The sums over a submission's grades, by the submission: see NO_GRADES."""
    from nbgrader.api import Assignment, Grade, MissingEntry, SubmittedAssignment, SubmittedNotebook
    from sqlalchemy import case, func, select

    try:
        notebooks = inner.find_assignment(assignment).notebooks
    except MissingEntry:
        return {}
    cells = [cell for nb in notebooks for cell in (*nb.grade_cells, *nb.task_cells)]
    if not cells:
        return {}
    worth = case({cell.id: float(cell.max_score) for cell in cells}, value=Grade.cell_id, else_=0.0)
    to_mark = case((Grade.needs_manual_grade, worth), else_=0.0)
    sums = [
        func.coalesce(func.sum(each), 0.0)
        for each in (Grade.auto_score, Grade.score, worth, to_mark)
    ]
    found = inner.db.execute(
        select(SubmittedNotebook.assignment_id, *sums)
        .join(Grade, Grade.notebook_id == SubmittedNotebook.id)
        .join(SubmittedAssignment, SubmittedAssignment.id == SubmittedNotebook.assignment_id)
        .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
        .where(Assignment.name == assignment)
        .group_by(SubmittedNotebook.assignment_id)
    )
    return {submission: tuple(rest) for submission, *rest in found}
