"""A course in a temporary folder, and the submissions of its class to one assignment."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from course_pkg.grading.classroom.release import program_path
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
    """A course with one assignment, a copy of `prepared` if there is one. show: of the last run."""

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
        path = self.root / "submitted" / student / self.assignment / f"{self.assignment}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def answers(self, share: float = 1.0) -> NotebookNode:
        released = notebook(EXERCISES, self.assignment)
        return answered(released, notebook(SOLUTIONS, self.assignment), share)

    def submit(self, student: str, share: float = 1.0, code: str = "", at: int = 0) -> None:
        """Submit a share of the answers, with a cell of code before the cell with that index."""
        nb = self.answers(share)
        if code:
            nb.cells.insert(at, new_code_cell(code, id="own"))
        self.write(student, nb)

    def write(self, student: str, nb: NotebookNode) -> None:
        nbformat.write(named(nb, student), self.path(student))

    def start(self, *arguments: str, program: str = "course_pkg") -> subprocess.Popen[str]:
        """Start a command, by default one of `course`."""
        return subprocess.Popen(
            [sys.executable, "-m", program, *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": program_path()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def grade(self, **options) -> dict:
        jobs = min(2, len(os.sched_getaffinity(0)))
        asked = Options(self.root / "submitted", **{"jobs": jobs, **options})
        with Display() as self.show:
            records = grade_class.grade(self.root, self.assignment, asked, self.show)
        return {record.student: record for record in records}

    def said(self) -> str:
        return self.show.console.file.getvalue()

    def table(self) -> dict[str, dict[str, str]]:
        with open(self.root / "results" / self.assignment / "grades.csv", newline="") as file:
            return {row["student"]: row for row in csv.DictReader(file)}

    def autograded(self, student: str) -> NotebookNode:
        folder = self.root / "autograded" / student / self.assignment
        return nbformat.read(folder / f"{self.assignment}.ipynb", as_version=4)

    def gradebook(self):
        from nbgrader.api import Gradebook

        return Gradebook(f"sqlite:///{self.root}/gradebook.db", "llm-course")
