"""What a late submission costs.

nbgrader's own commands set a penalty once, when they grade; here it is computed again whenever the
due date, the extension, the time or the points may have changed (see lateness.py).

Chapter: appendix/for-instructors.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbgrader.api import Gradebook
    from nbgrader.plugins import BasePlugin


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
