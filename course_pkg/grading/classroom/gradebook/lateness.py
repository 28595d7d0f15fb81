"""When submissions came in: due dates, times, extensions.

nbgrader stores a due date for an assignment, and for a submission its time and its extension.

Chapter: appendix/for-instructors.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from course_pkg.grading.classroom.gradebook.nbgrader_api import GradebookError
from course_pkg.grading.classroom.gradebook.penalties import assign_penalties

if TYPE_CHECKING:
    from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook


# Canvas says that a submission is late, but not by how much.
LATE_WITHOUT_TIME = timedelta(minutes=1)


def refresh_penalties(book: "CourseGradebook", assignment: str) -> None:
    """Compute the late penalty of every submission to an assignment again."""
    with book.transaction():
        assign_penalties(book.nbgrader_book, book.penalty_plugin, assignment)


def late_without_time(book: "CourseGradebook", assignment: str) -> datetime | None:
    """The time for a late submission whose time is unknown; None without a due date."""
    due = _due(book, assignment)
    return due and due.replace(tzinfo=UTC) + LATE_WITHOUT_TIME


def set_timestamp(
    book: "CourseGradebook", assignment: str, student: str, timestamp: datetime
) -> None:
    """Set when a student submitted.

    Args:
        timestamp: in UTC if it has no zone.
    """
    with book.transaction():
        book.nbgrader_book.update_or_create_submission(assignment, student, timestamp=timestamp)


def extend(book: "CourseGradebook", assignment: str, student: str, hours: float) -> None:
    """Give a student more time instead of any earlier extension; 0 for none.

    Raises:
        GradebookError: the student has no graded submission, or there is no due date.
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
