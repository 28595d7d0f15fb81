"""Cells that an author adds to an assignment after submissions were graded.

nbgrader refuses to release such an assignment. Here the new cells are added to the gradebook first,
for every submission, so that all points and comments stay; a new grading then fills them.

Chapter: appendix/for-instructors.
"""

from typing import TYPE_CHECKING

import nbformat

from course_pkg.classroom.release import ReleaseError

if TYPE_CHECKING:
    from course_pkg.classroom.gradebook.gradebook import CourseGradebook

KINDS = ("grade", "solution", "task", "source")


def add_new_cells(book: "CourseGradebook", assignment: str) -> list[str]:
    """Add the cells of the source notebook that the gradebook lacks; their names, in order.

    Does nothing without submissions. Raises ReleaseError, and changes nothing, if a cell was
    removed that submissions have points or comments for.
    """
    from nbgrader.api import Comment, Grade, MissingEntry
    from nbgrader.utils import is_grade, is_locked, is_solution, is_task

    path = book.source_folder(assignment) / f"{assignment}.ipynb"
    if not path.is_file():
        return []
    inner = book.nbgrader_book
    cells = [c for c in nbformat.read(path, as_version=4).cells if "nbgrader" in c.metadata]
    tests = {"grade": is_grade, "solution": is_solution, "task": is_task}
    every = (is_grade, is_solution, is_task, is_locked)
    tests["source"] = lambda cell: any(is_kind(cell) for is_kind in every)
    wanted = {
        kind: {c.metadata.nbgrader.grade_id: c for c in cells if tests[kind](c)} for kind in KINDS
    }
    with book.transaction():
        try:
            notebook = inner.find_notebook(assignment, assignment)
        except MissingEntry:
            return []
        if not notebook.submissions:
            return []
        have = {kind: {c.name for c in getattr(notebook, f"{kind}_cells")} for kind in KINDS}
        if gone := sorted({name for kind in KINDS for name in have[kind] - set(wanted[kind])}):
            raise ReleaseError(
                f"{len(notebook.submissions)} submissions to {assignment} are in the gradebook, "
                f"with points or comments for cells that are gone or of another kind: "
                f"{', '.join(gone)}; put them back into {path.parent.name}/, a graded cell perhaps "
                "with 0 points"
            )
        added = []
        for kind in KINDS:
            for name, cell in wanted[kind].items():
                if name in have[kind]:
                    continue
                added.append(name)
                fields = {"cell_type": cell.cell_type}
                if kind in ("grade", "task"):
                    fields["max_score"] = float(cell.metadata.nbgrader.points)
                if kind == "source":
                    fields |= {"locked": is_locked(cell), "source": cell.source}
                make = getattr(inner, f"update_or_create_{kind}_cell")
                made = make(name, assignment, assignment, **({} if kind == "solution" else fields))
                for submitted in notebook.submissions:
                    if kind in ("grade", "task"):
                        by_person = kind == "task" or is_solution(cell)
                        points = {} if by_person else {"auto_score": 0.0}
                        inner.db.add(
                            Grade(
                                cell_id=made.id,
                                notebook=submitted,
                                needs_manual_grade=by_person,
                                **points,
                            )
                        )
                    if kind in ("solution", "task"):
                        inner.db.add(Comment(cell_id=made.id, notebook=submitted))
        return list(dict.fromkeys(added))
