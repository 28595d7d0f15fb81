"""What the tests of every assignment need: its notebooks, and its wrong answers as cells."""

import copy
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from course_pkg.grading.classroom.release import program_path
from course_pkg.grading.classroom.runs.sample_class import named
from course_pkg.grading.questions import registry
from course_pkg.grading.questions.answer_key import AnswerKey, answer_key, defined_name
from course_pkg.grading.questions.calling import outcome
from course_pkg.grading.questions.grading_session import GradingSession
from course_pkg.grading.questions.question import Question, WrongAnswer
from course_pkg.grading.questions.verdict import judge

ROOT = Path(__file__).resolve().parents[2]
SOLUTIONS = ROOT / "solutions"
EXERCISES = ROOT / "exercises"
CHECK = re.compile(r'check\("([^"/]+)/([^"]+)",\s*(.+)\)\s*$')


@dataclass(frozen=True)
class Place:
    """Where a question is in a notebook: the indices of its answer and its check cell."""

    answer: int
    check: int
    points: float


def assignments() -> list[str]:
    return sorted(
        path.name for path in SOLUTIONS.iterdir() if (path / f"{path.name}.ipynb").exists()
    )


def artifacts(assignment):
    """The questions that are answered with files: the rounds of wrong answers leave them empty."""
    return [q.name for q in registry.load(assignment).questions.values() if q.artifact]


def wrong_cells(assignment: str) -> list[dict[str, tuple[WrongAnswer, str]]]:
    """The wrong answers in rounds: the first of each question with its cell, then the second, …"""
    key = answer_key(assignment)
    questions = key.assignment.questions.values()
    rounds = zip_longest(*([(q, wrong) for wrong in q.wrong] for q in questions))
    return [
        {pair[0].name: (pair[1], wrong_cell(key, *pair)) for pair in pairs if pair}
        for pairs in rounds
    ]


def wrong_cell(key: AnswerKey, question: Question, wrong: WrongAnswer) -> str:
    code = key.source(question, wrong)
    if not wrong.wrap:
        return code
    name = defined_name(question.answer)
    inputs = "" if question.variant else f"lambda {', '.join(question.call)}: "
    return f"{code}\nanswer = {name}\n{name} = {inputs}{wrong.wrap}"


def notebook(folder: Path, assignment: str) -> NotebookNode:
    """The assignment's notebook in `folder`: SOLUTIONS or EXERCISES."""
    return nbformat.read(folder / assignment / f"{assignment}.ipynb", as_version=4)


def places(nb: NotebookNode) -> dict[str, Place]:
    """Each question of a notebook, by name: the check cell and the solution cell before it."""
    by_question = {}
    answer = None
    for index, cell in enumerate(nb.cells):
        meta = cell.metadata.get("nbgrader", {})
        if meta.get("solution"):
            answer = index
        if meta.get("grade") and cell.cell_type == "code":
            match = CHECK.search(cell.source)
            assert match, f"a test cell must end in check(...): {cell.source!r}"
            by_question[match[2]] = Place(answer, index, meta["points"])
    return by_question


def with_answers(nb: NotebookNode, answers: dict[str, str]) -> NotebookNode:
    nb = copy.deepcopy(nb)
    where = places(nb)
    for question, code in answers.items():
        nb.cells[where[question].answer].source = code.strip()
    return nb


@cache
def drawn_for(assignment: str, student: str = "ada") -> GradingSession:
    """A student's session, so that its cases are drawn once for all tests."""
    return GradingSession(assignment, student)


def points_lost(assignment: str, name: str, answer: object, student: str = "ada") -> int:
    """The points that an answer to a question loses on one student's cases."""
    session = drawn_for(assignment, student)
    key = session.answers
    question = key[name]
    cases = session.cases(name)
    outcomes = [outcome(question.call, answer, c.inputs, c.unchanged, key.callers) for c in cases]
    return question.points - judge(key, question, cases, outcomes, explain=False).earned


def answers_to(assignment: str) -> dict[str, Any]:
    """The model answers that are functions or classes, by the names of their questions."""
    key = answer_key(assignment)
    return {
        name: key.answer(question, None)
        for name, question in key.assignment.questions.items()
        if question.call and not question.artifact
    }


def patched(assignment: str, question: str, old: str, new: str) -> Any:
    """The model answer to a question, with one text replaced."""
    key = answer_key(assignment)
    wrong = WrongAnswer("patched", says="", loses=(), patch=((old, new),))
    code = key.source(key[question], wrong)
    names: dict[str, Any] = {}
    exec(f"{key.setup(key[question])}\n{code}", names)
    return names[defined_name(code)]


class Course:
    """A course in a temporary folder, graded with nbgrader's own commands."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "solutions").symlink_to(SOLUTIONS)
        (root / "nbgrader_config.py").write_text((ROOT / "nbgrader_config.py").read_text())

    def nbgrader(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        env |= {"PATH": program_path(), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "nbgrader", *arguments]
        return subprocess.run(
            command, cwd=self.root, env=env, capture_output=True, text=True, timeout=900
        )

    def submit(self, student: str, assignment: str, nb: NotebookNode) -> Path:
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
