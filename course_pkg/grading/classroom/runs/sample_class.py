"""A sample class of four submissions, to try the grader on.

ada submits the answers, ben half of them, chi the notebook as released, and dan a truncated file.
"""

import os
import shutil
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_pkg.common.errors import FailedError
from course_pkg.grading.classroom.gradebook.record import Record
from course_pkg.grading.classroom.release import ReleaseError, run_nbgrader
from course_pkg.grading.classroom.runs.grade_class import Options
from course_pkg.grading.classroom.runs.grade_class import grade as grade_class
from course_pkg.grading.classroom.runs.progress import ProgressDisplay

STUDENTS = ("ada", "ben", "chi", "dan")
ASSIGNMENTS = ("bleu", "lora-math", "perplexity", "quantization")  # graded in half a minute


class GradingFailed(FailedError, RuntimeError):
    """An nbgrader command failed; the message names the command and its log."""


def build(course: Path, root: Path, *, every: bool = True) -> list[str]:
    """Write the class's submissions into a new course folder `root`; the assignments' names.

    An existing `root` is deleted.

    Args:
        every: every assignment, otherwise those of ASSIGNMENTS, if the course has any of them.
    """
    assignments = sorted(path.parent.name for path in course.glob("solutions/*/*.ipynb"))
    if not every:
        assignments = [name for name in assignments if name in ASSIGNMENTS] or assignments
    if not assignments:
        raise ReleaseError(f"{course} holds no solutions/: run this in the course's folder")
    for name in assignments:
        if not (course / "exercises" / name / f"{name}.ipynb").is_file():
            raise ReleaseError(f"{name} is not released: run `course release {name}`")
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
    """The released notebook with that share of the answers, the first ones, rounded down."""
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
    """A copy, signed by the student."""
    copy = nbformat.from_dict(notebook)
    for cell in copy.cells:
        if cell.source == 'STUDENT = ""':
            cell.source = f'STUDENT = "{student}"'
    return copy


def grade(root: Path, assignments: list[str], show: ProgressDisplay) -> dict[str, list[Record]]:
    """Grade the class in `root`, generate feedback, export; the records by assignment."""
    records = {}
    for assignment in assignments:
        jobs = min(4, len(os.sched_getaffinity(0)))
        options = Options(root / "submitted", jobs=jobs)
        records[assignment] = grade_class(root, assignment, options, show)
        if any(root.glob(f"autograded/*/{assignment}")):  # none, if every submission waits
            nbgrader(root, "generate_feedback", assignment)
    nbgrader(root, "export")
    return records


def nbgrader(root: Path, *arguments: str) -> None:
    """Run an nbgrader command, one that runs no submission, in the course in `root`, with a log."""
    log = root.resolve() / "nbgrader.log"
    with log.open("a") as out:
        done = run_nbgrader(root, *arguments, stdout=out, stderr=out)
    if done.returncode:
        raise GradingFailed(f"nbgrader {' '.join(arguments)} failed; see {log}")
