"""What a late submission costs.

nbgrader's own commands set a penalty once, when they grade; here it is computed again whenever the
due date, the extension, the time or the points may have changed.
"""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbgrader.api import Gradebook
    from nbgrader.plugins import BasePlugin


def seconds_late(
    submitted: datetime | None, due: datetime | None, extension: timedelta | None
) -> float:
    """Seconds after the due date and the extension; 0 without a due date or a time."""
    if submitted is None or due is None:
        return 0.0
    return max(0.0, (submitted - due - (extension or timedelta())).total_seconds())


def assign_penalties(
    book: "Gradebook", plugin: "BasePlugin", assignment: str, student: str | None = None
) -> None:
    """Set the late penalties of an assignment, or of one student, without a commit.

    The number of queries grows only with the penalties that change, not with the class.

    Args:
        plugin: what the course configured; a penalty is at least 0 and at most the score.
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
    for notebook, name, before, *when, score in book.db.execute(submissions).all():
        late_s = seconds_late(*when)
        penalty = None
        if late_s > 0:
            penalty = plugin.late_submission_penalty(name, float(score), late_s)
        if penalty is not None:
            penalty = min(max(penalty, 0), float(score))
        if penalty != before:
            book.db.execute(
                update(SubmittedNotebook)
                .where(SubmittedNotebook.id == notebook)
                .values(late_submission_penalty=penalty)
            )
