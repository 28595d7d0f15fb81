"""When submissions came in, and what a late one costs: due dates, times, extensions, penalties.

nbgrader stores a due date for an assignment, and for a submission its time and its extension. Its
own commands set a penalty once, when they grade; here it is computed again whenever the due date,
the extension, the time or the points may have changed.

Chapter: appendix/for-instructors.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from course_pkg.classroom.gradebook.nbgrader_api import GradebookError

if TYPE_CHECKING:
    from course_pkg.classroom.gradebook.gradebook import CourseGradebook


# Canvas says that a submission is late, but not by how much.
LATE_WITHOUT_TIME = timedelta(minutes=1)


def seconds_late(
    submitted: datetime | None, due: datetime | None, extension: timedelta | None
) -> float:
    """Seconds after the due date and the extension; 0 without a due date or a time.

    >>> due = datetime(2026, 3, 1, 12)
    >>> seconds_late(datetime(2026, 3, 1, 14), due, timedelta(hours=1))
    3600.0
    """
    if submitted is None or due is None:
        return 0.0
    return max(0.0, (submitted - due - (extension or timedelta())).total_seconds())


def refresh_penalties(book: "CourseGradebook", assignment: str) -> None:
    """Compute the late penalty of every submission to an assignment again."""
    with book.transaction():
        assign_penalties(book, assignment)


def assign_penalties(book: "CourseGradebook", assignment: str, student: str | None = None) -> None:
    """Set the late penalties of an assignment, or of one student, within a transaction.

    The course's plugin gives them; each is at least 0 and at most the score. The number of queries
    grows only with the penalties that change, not with the class.
    """
    from nbgrader.api import Assignment, Grade, SubmittedAssignment, SubmittedNotebook
    from sqlalchemy import func, select, update

    columns = (
        SubmittedNotebook.id,
        SubmittedAssignment.student_id,
        SubmittedNotebook.late_submission_penalty,
        SubmittedAssignment.timestamp,
        Assignment.duedate,
        SubmittedAssignment.extension,
    )
    submissions = (
        select(*columns, func.coalesce(func.sum(Grade.score), 0.0))
        .join(SubmittedAssignment, SubmittedAssignment.id == SubmittedNotebook.assignment_id)
        .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
        .outerjoin(Grade, Grade.notebook_id == SubmittedNotebook.id)
        .where(Assignment.name == assignment)
        .group_by(*columns)
        .order_by(SubmittedAssignment.student_id)
    )
    if student is not None:
        submissions = submissions.where(SubmittedAssignment.student_id == student)
    db = book.nbgrader_book.db
    for notebook, name, before, *when, score in db.execute(submissions).all():
        late_s = seconds_late(*when)
        penalty = None
        if late_s > 0:
            penalty = book.penalty_plugin.late_submission_penalty(name, float(score), late_s)
        if penalty is not None:
            penalty = min(max(penalty, 0), float(score))
        if penalty != before:
            db.execute(
                update(SubmittedNotebook)
                .where(SubmittedNotebook.id == notebook)
                .values(late_submission_penalty=penalty)
            )


def late_without_time(book: "CourseGradebook", assignment: str) -> datetime | None:
    """The time for a late submission whose time is unknown; None without a due date."""
    due = _due(book, assignment)
    return due and due.replace(tzinfo=UTC) + LATE_WITHOUT_TIME


def set_timestamp(
    book: "CourseGradebook", assignment: str, student: str, timestamp: datetime
) -> None:
    """Set when a student submitted. timestamp: in UTC if it has no zone."""
    with book.transaction():
        book.nbgrader_book.update_or_create_submission(assignment, student, timestamp=timestamp)


def extend(book: "CourseGradebook", assignment: str, student: str, hours: float) -> None:
    """Give a student more time instead of any earlier extension; 0 for none.

    Raises GradebookError if the student has no graded submission, or there is no due date.
    """
    from nbgrader.api import MissingEntry

    if _due(book, assignment) is None:
        raise GradebookError(
            f"{assignment} has no due date: set it with `nbgrader db assignment add {assignment} "
            '--duedate="2026-03-01 12:00 UTC"`'
        )
    with book.transaction():
        try:
            book.nbgrader_book.grant_extension(assignment, student, hours=hours)
        except MissingEntry:
            raise GradebookError(
                f"{student} has no graded submission to {assignment}: grade it first, then extend"
            ) from None
    refresh_penalties(book, assignment)


def _due(book: "CourseGradebook", assignment: str) -> datetime | None:
    from nbgrader.api import MissingEntry

    with book.reading():
        try:
            return book.nbgrader_book.find_assignment(assignment).duedate
        except MissingEntry:
            return None
