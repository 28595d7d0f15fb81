"""What a late submission costs.

nbgrader's own commands set a penalty once, when they grade; here it is computed again whenever the
due date, the extension, the time or the points may have changed (see lateness.py).

Chapter: appendix/for-instructors.
"""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbgrader.api import Gradebook
    from nbgrader.plugins import BasePlugin


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


def late_penalty(plugin: "BasePlugin", student: str, score: float, late_s: float) -> float | None:
    """What the course's plugin takes for one notebook: 0 to its score; None if it is not late."""
    penalty = plugin.late_submission_penalty(student, score, late_s) if late_s > 0 else None
    return None if penalty is None else min(max(penalty, 0), score)


def assign_penalties(book: "Gradebook", submission: Any, plugin: "BasePlugin") -> None:
    """Set the penalty for a late submission, from the plugin that the course configured."""
    due = submission.assignment.duedate
    late_s = seconds_late(submission.timestamp, due, submission.extension)
    for notebook in submission.notebooks:
        if late_s > 0:
            book.db.flush()
            book.db.refresh(notebook, ["score"])
        score = notebook.score if late_s > 0 else 0.0
        student = submission.student_id
        notebook.late_submission_penalty = late_penalty(plugin, student, score, late_s)


def notebook_scores(book: "Gradebook", assignment: str) -> dict[str, float]:
    """The score of each submitted notebook of an assignment, by its id."""
    from nbgrader.api import Assignment, Grade, SubmittedAssignment, SubmittedNotebook
    from sqlalchemy import func, select

    found = book.db.execute(
        select(SubmittedNotebook.id, func.coalesce(func.sum(Grade.score), 0.0))
        .join(Grade, Grade.notebook_id == SubmittedNotebook.id)
        .join(SubmittedAssignment, SubmittedAssignment.id == SubmittedNotebook.assignment_id)
        .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
        .where(Assignment.name == assignment)
        .group_by(SubmittedNotebook.id)
    )
    return {notebook: float(score) for notebook, score in found}
