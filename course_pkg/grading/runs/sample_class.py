"""A small class to try the whole chain on: four submissions, graded as a real class is.

ada hands in the answers, ben half of them, chi the notebook as released, and dan a file that
breaks off in the middle. `build` writes them into a course of their own; `grade` takes it from
there to scores, with `course grade`, and to feedback and a CSV with nbgrader's own commands.

Chapter: appendix/for-instructors.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from ..gradebook.release import program_path
from ..results.records import Record
from .grader import grade as grade_class
from .options import Options
from .progress import ProgressDisplay

STUDENTS = ("ada", "ben", "chi", "dan")


class GradingFailed(RuntimeError):
    """An nbgrader command failed; the message names the command and its log."""


def build(course: Path, root: Path) -> list[str]:
    """Write the class's submissions into `root`, a course folder of its own; names assignments.

    course: the folder that holds solutions/, exercises/ and nbgrader_config.py. What `root` held
    before is removed. Raises FileNotFoundError where there is no assignment, or one that has not
    been released.
    """
    assignments = sorted(path.parent.name for path in course.glob("solutions/*/*.ipynb"))
    if not assignments:
        raise FileNotFoundError(f"{course} holds no solutions/: run this in the course's folder")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for name in ("solutions", "exercises"):
        shutil.copytree(course / name, root / name)
    shutil.copy(course / "nbgrader_config.py", root)
    for assignment in assignments:
        name = Path(assignment) / f"{assignment}.ipynb"
        solution = nbformat.read(course / "solutions" / name, as_version=4)
        released = nbformat.read(course / "exercises" / name, as_version=4)
        full = answered(released, solution)
        notebooks = (full, answered(released, solution, 0.5), released, full)
        for student, notebook in zip(STUDENTS, notebooks, strict=True):
            path = root / "submitted" / student / name
            path.parent.mkdir(parents=True)
            text = nbformat.writes(named(notebook, student))
            path.write_text(text[: len(text) // 2] if student == "dan" else text)
    return assignments


def answered(released: NotebookNode, solution: NotebookNode, share: float = 1.0) -> NotebookNode:
    """The released notebook with the first answers filled in, that share of them rounded down."""
    places = [
        index
        for index, cell in enumerate(solution.cells)
        if cell.metadata.get("nbgrader", {}).get("solution") and cell.cell_type == "code"
    ]
    copy = nbformat.from_dict(released)
    for index in places[: int(len(places) * share)]:
        copy.cells[index].source = solution.cells[index].source
    return copy


def named(notebook: NotebookNode, student: str) -> NotebookNode:
    """A copy of the notebook in which the student has put their name."""
    copy = nbformat.from_dict(notebook)
    for cell in copy.cells:
        if cell.source == 'STUDENT = ""':
            cell.source = f'STUDENT = "{student}"'
    return copy


def grade(root: Path, assignments: list[str], show: ProgressDisplay) -> dict[str, list[Record]]:
    """Grade the class at `root`, write nbgrader's feedback, and export; the records by assignment.

    Raises GradingFailed, and what `course grade` raises.
    """
    records = {}
    for assignment in assignments:
        jobs = min(4, len(os.sched_getaffinity(0)))
        options = Options(root / "submitted", jobs=jobs)
        records[assignment] = grade_class(root, assignment, options, show)
        nbgrader(root, "generate_feedback", assignment)
    nbgrader(root, "export")
    return records


def nbgrader(root: Path, *arguments: str) -> None:
    """Run one nbgrader command, which runs no hand-in, in the course at `root`; with a log."""
    log = root.resolve() / "nbgrader.log"
    with log.open("a") as out:
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", *arguments],
            cwd=root, env={**os.environ, "PATH": program_path()}, stdout=out, stderr=out,
        )  # fmt: skip
    if done.returncode:
        raise GradingFailed(f"nbgrader {' '.join(arguments)} failed; see {log}")
