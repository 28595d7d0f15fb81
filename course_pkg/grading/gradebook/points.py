"""A class's points in nbgrader's gradebook: automatic, by hand, late penalty, and their total.

The gradebook is the only place that knows them all. The report on the class, the CSV files and the
export read them here, so their totals are those of nbgrader's own export and feedback. A few
queries read the whole class, because nbgrader's objects would need several for each submission.

Chapter: appendix/for-instructors.
"""

from datetime import UTC
from typing import TYPE_CHECKING

from ..results.points import Points
from .penalties import seconds_late

if TYPE_CHECKING:
    from nbgrader.api import Gradebook

    from .gradebook import CourseGradebook

NO_GRADES = (0.0, 0.0, 0.0, 0.0)  # automatic, total, possible, to mark


def class_points(book: "CourseGradebook", assignment: str) -> dict[str, Points]:
    """The points of every submission to an assignment, by student; {} for an unknown one."""
    from nbgrader.api import Assignment, SubmittedAssignment, SubmittedNotebook
    from sqlalchemy import func, select

    with book.reading():
        db = book.nbgrader_book.db
        grades = _grades(book.nbgrader_book, assignment)
        penalty = func.sum(SubmittedNotebook.late_submission_penalty)
        found = db.execute(
            select(
                SubmittedAssignment.id,
                SubmittedAssignment.student_id,
                SubmittedAssignment.timestamp,
                SubmittedAssignment.extension,
                Assignment.duedate,
                func.coalesce(penalty, 0.0),
            )
            .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
            .outerjoin(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
            .where(Assignment.name == assignment)
            .group_by(
                SubmittedAssignment.id,
                SubmittedAssignment.student_id,
                SubmittedAssignment.timestamp,
                SubmittedAssignment.extension,
                Assignment.duedate,
            )
        )
        points = {}
        for submission, student, when, extension, due, late_penalty in found:
            automatic, total, possible, to_mark = grades.get(submission, NO_GRADES)
            points[student] = Points(
                automatic=float(automatic),
                by_hand=round(total - automatic, 6),
                late_penalty=float(late_penalty),
                max_score=float(possible),
                to_mark=float(to_mark),
                submitted=when and when.replace(tzinfo=UTC),
                late_s=seconds_late(when, due, extension),
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
