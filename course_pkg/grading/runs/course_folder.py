"""Check that a folder is a course's and has the assignment, before anything is written to it.

Chapter: appendix/for-instructors.
"""

import re
from pathlib import Path

from ..contract import registry
from ..contract.registry import UnknownQuestion
from ..gradebook.nbgrader_api import configured
from ..gradebook.release import require_course

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def require_assignment(course: Path, assignment: str) -> None:
    """Raises ReleaseError if the folder is no course's, UnknownQuestion if it lacks the assignment.

    An assignment is a notebook of that name in the course's source or release folder, as
    nbgrader_config.py calls them. Writes nothing.
    """
    require_course(course)
    usual = [course / folder / assignment for folder in ("solutions", "exercises")]
    if registry.has_checks(assignment) and any(map(_has_notebook, usual)):
        return  # without nbgrader, which takes a second to import
    names = configured(course).folders
    folders = [course / names.source_directory, course / names.release_directory]
    if _NAME.fullmatch(assignment) and any(_has_notebook(f / assignment) for f in folders):
        return
    known = {p.name for f in folders if f.is_dir() for p in f.iterdir() if _has_notebook(p)}
    there = ", ".join(sorted(known)) or "none"
    raise UnknownQuestion(
        f"no assignment is called {assignment!r}; {names.source_directory}/ and "
        f"{names.release_directory}/ have: {there}"
    )


def _has_notebook(folder: Path) -> bool:
    return (folder / f"{folder.name}.ipynb").is_file()
