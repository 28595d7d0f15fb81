"""A submission's points in nbgrader's gradebook: automatic, by hand, late penalty, and their total.

The gradebook is the only place that knows them all. The report on the class, the CSV files and the
export read them here, so their totals are those of nbgrader's own export and feedback.

Chapter: appendix/for-instructors.
"""

from datetime import UTC
from typing import TYPE_CHECKING, Any

from ..results.points import Points
from .penalties import seconds_late

if TYPE_CHECKING:
    from .gradebook import CourseGradebook


def class_points(book: "CourseGradebook", assignment: str) -> dict[str, Points]:
    """The points of every submission to an assignment, by student; {} for an unknown one."""
    from nbgrader.api import MissingEntry

    with book.reading():
        try:
            submissions = book.nbgrader_book.assignment_submissions(assignment)
        except MissingEntry:
            return {}
        return {submission.student_id: _points(submission) for submission in submissions}


def _points(submission: Any) -> Points:
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
    automatic = float(sum(grade.auto_score or 0 for grade in grades))
    total = float(sum(grade.score or 0 for grade in grades))
    penalty = sum(notebook.late_submission_penalty or 0 for notebook in submission.notebooks)
    return Points(
        automatic=automatic,
        by_hand=round(total - automatic, 6),
        late_penalty=float(penalty),
        max_score=float(sum(grade.max_score for grade in grades)),
        to_mark=float(sum(grade.max_score for grade in grades if grade.needs_manual_grade)),
        submitted=submission.timestamp and submission.timestamp.replace(tzinfo=UTC),
        late_s=seconds_late(submission),
    )
