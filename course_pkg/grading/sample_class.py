"""A small class to try the whole chain on: four submissions, graded by nbgrader's own commands.

ada hands in the solution, ben half of it, chi the notebook as released, and dan a file that
breaks off in the middle. `build` writes them into a course of their own, `grade` takes it from
there to scores, feedback and a CSV. It is not the course's autograder: nbgrader trusts what the
notebooks say, and these notebooks are our own.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_pkg.grading.handout import program_path
from course_pkg.sandbox.policy import confined

STUDENTS = ("ada", "ben", "chi", "dan")


class GradingFailed(RuntimeError):
    """An nbgrader command failed; the message names the command and its log.

    Chapter: appendix/for-instructors.
    """


@dataclass(frozen=True)
class Row:
    """One line of the result: a student, an assignment, the state, and the points.

    Chapter: appendix/for-instructors.
    """

    student: str
    assignment: str
    state: str
    score: float
    max_score: float
    to_mark: float


def run(course: Path, root: Path) -> list[Row]:
    """Build the class for every assignment in `course`, grade it, and say what came of it.

    Chapter: appendix/for-instructors.
    """
    assignments = sorted(path.parent.name for path in course.glob("solutions/*/*.ipynb"))
    if not assignments:
        raise FileNotFoundError(f"{course} holds no solutions/: run this in the course's folder")
    build(course, root, assignments)
    return grade(root, assignments)


def build(course: Path, root: Path, assignments: list[str]) -> None:
    """Write the class's submissions into `root`, a course folder of its own.

    course: the folder that holds solutions/, exercises/ and nbgrader_config.py. What `root` held
    before is removed. Raises FileNotFoundError where an assignment has not been released.
    Chapter: appendix/for-instructors.
    """
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    shutil.copytree(course / "solutions", root / "solutions")
    shutil.copy(course / "nbgrader_config.py", root)
    for assignment in assignments:
        name = Path(assignment) / f"{assignment}.ipynb"
        solution = nbformat.read(course / "solutions" / name, as_version=4)
        released = nbformat.read(course / "exercises" / name, as_version=4)
        notebooks = (solution, half_of(solution, released), released, solution)
        for student, notebook in zip(STUDENTS, notebooks, strict=True):
            path = root / "submitted" / student / name
            path.parent.mkdir(parents=True)
            text = nbformat.writes(named(notebook, student))
            path.write_text(text[: len(text) // 2] if student == "dan" else text)


def half_of(solution: NotebookNode, released: NotebookNode) -> NotebookNode:
    """The released notebook with the first half of the answers filled in.

    Chapter: appendix/for-instructors.
    """
    places = [
        index
        for index, cell in enumerate(solution.cells)
        if cell.metadata.get("nbgrader", {}).get("solution")
    ]
    half = nbformat.from_dict(released)
    for index in places[: len(places) // 2]:
        half.cells[index] = solution.cells[index]
    return half


def named(notebook: NotebookNode, student: str) -> NotebookNode:
    """A copy of the notebook in which the student has put their name.

    Chapter: appendix/for-instructors.
    """
    copy = nbformat.from_dict(notebook)
    for cell in copy.cells:
        if cell.source == 'STUDENT = ""':
            cell.source = f'STUDENT = "{student}"'
    return copy


def grade(root: Path, assignments: list[str]) -> list[Row]:
    """Release, grade, write feedback and export, and say what came of every submission.

    Everything is run by bubblewrap without network, on a read-only system but for `root`. One
    submission that can't be graded does not stop the others. Raises GradingFailed.
    Chapter: appendix/for-instructors.
    """
    for assignment in assignments:
        nbgrader(root, "generate_assignment", assignment)
        nbgrader(root, "autograde", assignment, may_fail=True)
        nbgrader(root, "generate_feedback", assignment)
    nbgrader(root, "export")
    return [row for assignment in assignments for row in results(root, assignment)]


def nbgrader(root: Path, *arguments: str, may_fail: bool = False) -> None:
    """Run one nbgrader command in the course at `root`, confined; its output goes to a log.

    Chapter: appendix/for-instructors.
    """
    root = root.resolve()
    log, scratch = root / "nbgrader.log", root / ".scratch"
    scratch.mkdir(exist_ok=True)
    # Jupyter wants folders that it can write to.
    folders = ("HOME", "TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR")
    environment = {
        **os.environ,
        **dict.fromkeys(folders, str(scratch)),
        "PATH": program_path(),
    }
    command = confined([sys.executable, "-m", "nbgrader", *arguments], writable=[root])
    with log.open("a") as out:
        done = subprocess.run(command, cwd=root, env=environment, stdout=out, stderr=out)
    if done.returncode and not may_fail:
        raise GradingFailed(f"nbgrader {' '.join(arguments)} failed; see {log}")


def results(root: Path, assignment: str) -> list[Row]:
    """What the gradebook at `root` says of every student who handed something in.

    Chapter: appendix/for-instructors.
    """
    from nbgrader.api import Gradebook, MissingEntry

    rows = []
    with Gradebook(f"sqlite:///{root.resolve()}/gradebook.db", "llm-course") as book:
        most = book.find_assignment(assignment).max_score
        for student in sorted(p.name for p in (root / "submitted").iterdir()):
            graded = root / "autograded" / student / assignment / f"{assignment}.ipynb"
            try:
                found = book.find_submission(assignment, student) if graded.exists() else None
            except MissingEntry:
                found = None
            if found is None:
                submitted = root / "submitted" / student / assignment / f"{assignment}.ipynb"
                rows.append(Row(student, assignment, why_ungraded(submitted), 0.0, most, 0.0))
                continue
            by_hand = sum(
                g.max_score for nb in found.notebooks for g in nb.grades if g.needs_manual_grade
            )
            rows.append(Row(student, assignment, "graded", found.score, most, by_hand))
    return rows


def why_ungraded(submitted: Path) -> str:
    """Why nbgrader could make nothing of a file that was handed in.

    Chapter: appendix/for-instructors.
    """
    try:
        nbformat.read(submitted, as_version=4)
    except Exception as error:  # nbformat raises many types for a file that is no notebook
        return f"not graded: no notebook can be read from the file ({type(error).__name__})"
    return "not graded: see nbgrader.log"
