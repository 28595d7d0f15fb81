"""When submissions came in, and what that costs: due dates, extensions, late penalties.

nbgrader stores a due date for an assignment, and for a submission its time and its extension. Its
own commands set a penalty once, when they grade; here it is computed again whenever one of these,
or the points, may have changed.

Chapter: appendix/for-instructors.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from .nbgrader_api import GradebookError

if TYPE_CHECKING:
    from nbgrader.api import Gradebook
    from nbgrader.plugins import BasePlugin

    from .gradebook import CourseGradebook

# Canvas says that a submission is late, but not by how much.
LATE_WITHOUT_TIME = timedelta(minutes=1)


def seconds_late(submission: Any) -> float:
    """Seconds after the due date and the extension; 0 without a due date or a time."""
    if submission.timestamp is None or submission.assignment.duedate is None:
        return 0.0  # nbgrader's own property fails for an extension without a due date
    return float(submission.total_seconds_late)


def assign_penalties(book: "Gradebook", submission: Any, plugin: "BasePlugin") -> None:
    """Set the penalty for a late submission, from the plugin that the course configured."""
    late = seconds_late(submission)
    for notebook in submission.notebooks:
        notebook.late_submission_penalty = None
        if late > 0:
            book.db.flush()
            book.db.refresh(notebook, ["score"])
            penalty = plugin.late_submission_penalty(submission.student_id, notebook.score, late)
            if penalty is not None:
                notebook.late_submission_penalty = min(max(penalty, 0), notebook.score)


def refresh_penalties(book: "CourseGradebook", assignment: str) -> None:
    """Compute the late penalty of every submission to an assignment again."""
    with book.transaction():
        for submission in book.nbgrader_book.assignment_submissions(assignment):
            assign_penalties(book.nbgrader_book, submission, book.penalty_plugin)


def late_without_time(book: "CourseGradebook", assignment: str) -> datetime | None:
    """The time for a submission of which only its lateness is known; None without a due date."""
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
