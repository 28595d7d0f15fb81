"""A course in a temporary folder, and the submissions of its class to one assignment."""

import csv
import os
import shutil
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from course_pkg.grading.classroom.runs import grade_class
from course_pkg.grading.classroom.runs.grade_class import Options
from course_pkg.grading.classroom.runs.progress import ProgressDisplay
from course_pkg.grading.classroom.runs.sample_class import answered, named
from tests.exercises.assignments import EXERCISES, ROOT, SOLUTIONS, notebook
from tests.grading.classroom.test_progress import piped


class Display(ProgressDisplay):
    """Also keeps the names of the submissions that started to run."""

    def __init__(self) -> None:
        super().__init__(piped())
        self.began: list[str] = []

    def started(self, student: str) -> None:
        self.began.append(student)
        super().started(student)


class School:
    """A course with one assignment. prepared: a course to copy; by default a new one.

    show: the display of the last run.
    """

    def __init__(self, root: Path, assignment: str, prepared: Path | None = None) -> None:
        self.root = root
        self.assignment = assignment
        if prepared is not None:
            shutil.copytree(prepared, root)
            return
        for name in ("solutions", "exercises"):
            shutil.copytree(ROOT / name / assignment, root / name / assignment)
        shutil.copy(ROOT / "nbgrader_config.py", root)

    def path(self, student: str) -> Path:
        """Where a student's notebook is submitted."""
        path = self.root / "submitted" / student / self.assignment / f"{self.assignment}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def answers(self, share: float = 1.0) -> NotebookNode:
        """The released notebook with that share of the answers."""
        released = notebook(EXERCISES, self.assignment)
        return answered(released, notebook(SOLUTIONS, self.assignment), share)

    def submit(self, student: str, share: float = 1.0, code: str = "", at: int = 0) -> None:
        """Submit a share of the answers, with a cell of code before the cell with that index."""
        nb = self.answers(share)
        if code:
            nb.cells.insert(at, new_code_cell(code, id="own"))
        self.write(student, nb)

    def write(self, student: str, nb: NotebookNode) -> None:
        """Submit a notebook, signed."""
        nbformat.write(named(nb, student), self.path(student))

    def grade(self, **options) -> dict:
        """Grade; the records by student."""
        jobs = min(2, len(os.sched_getaffinity(0)))
        asked = Options(self.root / "submitted", **{"jobs": jobs, **options})
        with Display() as self.show:
            records = grade_class.grade(self.root, self.assignment, asked, self.show)
        return {record.student: record for record in records}

    def said(self) -> str:
        """What the last run printed."""
        return self.show.console.file.getvalue()

    def table(self) -> dict[str, dict[str, str]]:
        """The rows of grades.csv by student."""
        with open(self.root / "results" / self.assignment / "grades.csv", newline="") as file:
            return {row["student"]: row for row in csv.DictReader(file)}

    def autograded(self, student: str) -> NotebookNode:
        """The student's graded notebook."""
        folder = self.root / "autograded" / student / self.assignment
        return nbformat.read(folder / f"{self.assignment}.ipynb", as_version=4)

    def gradebook(self):
        """nbgrader's gradebook, to be closed."""
        from nbgrader.api import Gradebook

        return Gradebook(f"sqlite:///{self.root}/gradebook.db", "llm-course")
