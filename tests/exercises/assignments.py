"""What the tests of every assignment need: its notebooks, its questions, its wrong answers."""

import copy
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_pkg.grading.gradebook.release import program_path
from course_pkg.grading.runs.sample_class import named

ROOT = Path(__file__).resolve().parents[2]
SOLUTIONS, EXERCISES = ROOT / "solutions", ROOT / "exercises"
CHECK = re.compile(r'check\("([^"/]+)/([^"]+)",\s*(.+)\)\s*$')


@dataclass(frozen=True)
class WrongAnswer:
    """One wrong answer: the code, the properties it must lose, and what the student is told."""

    question: str
    name: str
    why: str
    loses: tuple[str, ...]
    code: str
    told: str | None = None


@dataclass(frozen=True)
class Place:
    """Where a question stands in a notebook: the indices of its answer and its check cell."""

    answer: int
    check: int
    points: float


def assignments() -> list[str]:
    """Every assignment with a source notebook."""
    return sorted(
        path.name for path in SOLUTIONS.iterdir() if (path / f"{path.name}.ipynb").exists()
    )


def wrong_answers(assignment: str) -> list[WrongAnswer]:
    """The wrong answers written down for an assignment."""
    path = Path(__file__).parent / "wrong" / f"{assignment}.toml"
    rows = tomllib.loads(path.read_text())["wrong"]
    return [WrongAnswer(**{**row, "loses": tuple(row["loses"])}) for row in rows]


def notebook(folder: Path, assignment: str) -> NotebookNode:
    """The assignment's notebook in `folder`: SOLUTIONS or EXERCISES."""
    return nbformat.read(folder / assignment / f"{assignment}.ipynb", as_version=4)


def places(nb: NotebookNode) -> dict[str, Place]:
    """Each question of a notebook, by name: the check cell and the solution cell before it."""
    found, answer = {}, None
    for index, cell in enumerate(nb.cells):
        meta = cell.metadata.get("nbgrader", {})
        if meta.get("solution"):
            answer = index
        if meta.get("grade") and cell.cell_type == "code":
            match = CHECK.search(cell.source)
            assert match, f"a test cell must end in check(...): {cell.source!r}"
            found[match[2]] = Place(answer, index, meta["points"])
    return found


def with_answers(nb: NotebookNode, answers: dict[str, str]) -> NotebookNode:
    """A copy of the notebook in which the answers to some questions are replaced."""
    nb = copy.deepcopy(nb)
    where = places(nb)
    for question, code in answers.items():
        nb.cells[where[question].answer].source = code.strip()
    return nb


def run_in_process(nb: NotebookNode) -> dict[str, object]:
    """Run a notebook's code cells here, and give what each question's check cell gave.

    As in nbgrader, a cell that raises does not stop the others; its score is then missing.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    scores = {}
    checks = {place.check: question for question, place in places(nb).items()}
    for index, cell in enumerate(nb.cells):
        if cell.cell_type != "code":
            continue
        try:
            if index in checks:
                scores[checks[index]] = eval(cell.source, namespace)
            else:
                exec(cell.source, namespace)
        except NotImplementedError:
            pass
        except NameError:
            assert index in checks, cell.source
    return scores


class Course:
    """A course in a folder of its own, worked with nbgrader's own commands."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "solutions").symlink_to(SOLUTIONS)
        (root / "nbgrader_config.py").write_text((ROOT / "nbgrader_config.py").read_text())

    def nbgrader(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one nbgrader command here."""
        env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        env |= {"PATH": program_path(), "OMP_NUM_THREADS": "1"}  # two would wait for each other
        return subprocess.run(
            [sys.executable, "-m", "nbgrader", *arguments],
            cwd=self.root, env=env, capture_output=True, text=True, timeout=900,
        )  # fmt: skip

    def submit(self, student: str, assignment: str, nb: NotebookNode) -> Path:
        """Hand in a notebook, with the student's name in it."""
        folder = self.root / "submitted" / student / assignment
        folder.mkdir(parents=True)
        nbformat.write(named(nb, student), folder / f"{assignment}.ipynb")
        return folder / f"{assignment}.ipynb"

    def scores(self, assignment: str) -> dict[str, dict[str, float | None]]:
        """The gradebook: the automatic score of every grade cell, by student."""
        from nbgrader.api import Gradebook

        table: dict[str, dict[str, float | None]] = {}
        with Gradebook(f"sqlite:///{self.root}/gradebook.db", "llm-course") as book:
            for submission in book.assignment_submissions(assignment):
                grades = submission.notebooks[0].grades
                table[submission.student.id] = {g.name: g.auto_score for g in grades}
        return table
