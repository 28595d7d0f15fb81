"""The rows of a class: the record and the gradebook's points of everybody in it, and statistics.

The gradebook alone knows points by hand and late penalties, so totals here are those of nbgrader's
own export. A few queries read the whole class, because nbgrader's objects would need several for
each submission.
"""

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from course_pkg.grading.classroom.execution.runner_output import State
from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook
from course_pkg.grading.classroom.gradebook.keys import secret
from course_pkg.grading.classroom.gradebook.penalties import seconds_late
from course_pkg.grading.classroom.gradebook.record import Record, Store, with_words
from course_pkg.grading.classroom.gradebook.students import students
from course_pkg.grading.classroom.submissions.roster import Person
from course_pkg.grading.questions.question_record import notes, unjudged


@dataclass(frozen=True)
class Points:
    """The points of one submission, and when it was submitted.

    Attributes:
        by_hand: what an instructor added or took away.
        to_mark: points that are still to be given or reviewed.
        submitted: in UTC, None if unknown.
        late_s: seconds after the due date and the student's extension.
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
        return max(0, self.automatic + self.by_hand - self.late_penalty)


@dataclass(frozen=True)
class Share:
    """The mean share of a question's points that a class earned, 0 to 1."""

    question: str
    points: int
    share: float


@dataclass(frozen=True)
class Statistics:
    """Scores of a class, in points: lower and upper are quartiles, most is what is possible."""

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
    """The statistics of the records with a score, without refused ones; None if nobody is left.

    Args:
        points: of the gradebook, by student: scores are then totals, and students who are not in it
            are left out. Without them, scores are automatic.
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


@dataclass(frozen=True)
class Row:
    """One student's record, and points in the gradebook; None for a student without them."""

    person: Person
    record: Record | None
    points: Points | None

    @property
    def student(self) -> str:
        return self.person.id

    @property
    def state(self) -> str:
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
    does not grow with the class.

    Args:
        fresh: records of this run, with words or without. They are newer than stored ones, or can't
            be stored.
    """
    book.refresh_penalties(assignment)
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
            func.coalesce(func.sum(column), 0.0)
            for column in (Grade.auto_score, Grade.score, worth, to_mark)
        ]
        rows = book.nbgrader_book.db.execute(
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
            for student, at, due, extension, charged, automatic, total, possible, left in rows
        }
