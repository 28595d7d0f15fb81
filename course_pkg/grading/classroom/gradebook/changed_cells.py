"""Cells that an author adds to an assignment after submissions were graded.

nbgrader refuses to release such an assignment. Here the new cells are added to the gradebook first,
for every submission, so that all points and comments stay.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import nbformat

from course_pkg.grading.classroom.release import ReleaseError

if TYPE_CHECKING:
    from nbgrader.api import Gradebook

KINDS = ("grade", "solution", "task", "source")


def add_new_cells(book: "Gradebook", source: Path, assignment: str) -> list[str]:
    """Add the cells of the notebook in the source folder that the gradebook lacks; their names.

    Call it in a transaction. Does nothing without submissions. Raises ReleaseError for a removed
    cell that submissions have points or comments for.
    """
    from nbgrader.api import Comment, Grade, MissingEntry
    from nbgrader.utils import is_grade, is_locked, is_solution, is_task

    path = source / f"{assignment}.ipynb"
    if not path.is_file():
        return []
    cells = [c for c in nbformat.read(path, as_version=4).cells if "nbgrader" in c.metadata]
    tests = {"grade": is_grade, "solution": is_solution, "task": is_task}
    every = (is_grade, is_solution, is_task, is_locked)
    tests["source"] = lambda cell: any(is_kind(cell) for is_kind in every)
    wanted = {
        kind: {c.metadata.nbgrader.grade_id: c for c in cells if tests[kind](c)} for kind in KINDS
    }
    try:
        notebook = book.find_notebook(assignment, assignment)
    except MissingEntry:
        return []
    if not notebook.submissions:
        return []
    have = {kind: {c.name for c in getattr(notebook, f"{kind}_cells")} for kind in KINDS}
    if gone := sorted({name for kind in KINDS for name in have[kind] - set(wanted[kind])}):
        raise ReleaseError(
            f"{len(notebook.submissions)} submissions to {assignment} are in the gradebook, with "
            f"points or comments for cells that are gone or of another kind: {', '.join(gone)}; "
            f"put them back into {source.name}/, a graded cell perhaps with 0 points"
        )
    added = [(kind, name) for kind in KINDS for name in wanted[kind] if name not in have[kind]]
    for kind, name in added:
        cell = wanted[kind][name]
        fields = {} if kind == "solution" else {"cell_type": cell.cell_type}
        if kind in ("grade", "task"):
            fields["max_score"] = float(cell.metadata.nbgrader.points)
        if kind == "source":
            fields |= {"locked": is_locked(cell), "source": cell.source}
        make = getattr(book, f"update_or_create_{kind}_cell")
        made = make(name, assignment, assignment, **fields)
        by_person = kind == "task" or is_solution(cell)
        for submitted in notebook.submissions:
            if kind in ("grade", "task"):
                points = {} if by_person else {"auto_score": 0.0}
                grade = Grade(cell_id=made.id, notebook=submitted, **points)
                grade.needs_manual_grade = by_person
                book.db.add(grade)
            if kind in ("solution", "task"):
                book.db.add(Comment(cell_id=made.id, notebook=submitted))
    return list(dict.fromkeys(name for _, name in added))
