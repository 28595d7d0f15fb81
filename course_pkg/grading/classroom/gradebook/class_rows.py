"""The rows of a class: the grader's record and the gradebook's points of everybody in it.

The gradebook is the only place that knows automatic points, points by hand and late penalties. The
class report, the CSV files and the export read them here, so their totals are those of nbgrader's
own export and feedback. A few queries read the whole class, because nbgrader's objects would need
several for each submission.

Chapter: appendix/for-instructors.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC

from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook
from course_pkg.grading.classroom.gradebook.lateness import refresh_penalties
from course_pkg.grading.classroom.gradebook.penalties import seconds_late
from course_pkg.grading.classroom.gradebook.students import students
from course_pkg.grading.classroom.results.class_scores import Points
from course_pkg.grading.classroom.results.keys import secret
from course_pkg.grading.classroom.results.record import Record, State, with_words
from course_pkg.grading.classroom.results.store import Store
from course_pkg.grading.classroom.submissions.roster import Person
from course_pkg.grading.questions.question_record import notes, unjudged


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
            said = notes(self.record.questions), unjudged(self.record.questions)
            texts = self.record.reason, *itertools.chain(*said)
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
    from nbgrader.api import Assignment, Grade, MissingEntry, SubmittedAssignment, SubmittedNotebook
    from sqlalchemy import case, func, literal, select

    with book.reading():
        try:
            notebooks = book.nbgrader_book.find_assignment(assignment).notebooks
        except MissingEntry:
            return {}
        cells = [cell for nb in notebooks for cell in (*nb.grade_cells, *nb.task_cells)]
        points = {cell.id: float(cell.max_score) for cell in cells}
        worth = case(points, value=Grade.cell_id, else_=0.0) if points else literal(0.0)
        to_mark = case((Grade.needs_manual_grade, worth), else_=0.0)
        when = (SubmittedAssignment.timestamp, Assignment.duedate, SubmittedAssignment.extension)
        penalty = (
            select(func.coalesce(func.sum(SubmittedNotebook.late_submission_penalty), 0.0))
            .where(SubmittedNotebook.assignment_id == SubmittedAssignment.id)
            .correlate(SubmittedAssignment)
            .scalar_subquery()
        )
        sums = [
            func.coalesce(func.sum(each), 0.0)
            for each in (Grade.auto_score, Grade.score, worth, to_mark)
        ]
        found = book.nbgrader_book.db.execute(
            select(SubmittedAssignment.student_id, *when, penalty, *sums)
            .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
            .outerjoin(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
            .outerjoin(Grade, Grade.notebook_id == SubmittedNotebook.id)
            .where(Assignment.name == assignment)
            .group_by(SubmittedAssignment.id, SubmittedAssignment.student_id, *when)
        )
        return {
            student: Points(
                automatic=float(automatic),
                by_hand=round(total - automatic, 6),
                late_penalty=float(charged),
                max_score=float(possible),
                to_mark=float(left),
                submitted=at and at.replace(tzinfo=UTC),
                late_s=seconds_late(at, due, extension),
            )
            for student, at, due, extension, charged, automatic, total, possible, left in found
        }
