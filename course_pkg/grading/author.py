"""What an author of an assignment looks at: `course check NAME` prints this matrix.

For a number of students, the model answer must earn every point, and each wrong answer must lose
exactly the properties that it names and be recognized in what a student is told. If the notebook
is there, its solution cells must be the model answers.

Chapter: appendix/for-instructors.
"""

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .contract.answer_key import answer_key, defined_name
from .contract.display import mark
from .contract.questions import Question
from .contract.session import Session
from .contract.verdict import judge

STUDENTS = 25


@dataclass(frozen=True)
class Row:
    """One answer to one question, over all students.

    wrong: its name, "" for the model answer. lost: for each property, the number of students for
    whom the answer lost it. recognized: the number for whom the student would be told of it.
    problem: what is not as `questions.toml` says, or "".
    """

    question: Question
    wrong: str
    lost: dict[str, int]
    recognized: int
    problem: str = ""


def matrix(assignment: str, students: int = STUDENTS) -> list[Row]:
    """The rows of an assignment. Raises UnknownQuestion, and ChecksError for what can't be drawn.

    students: how many students' cases are drawn; the first is the reader without a name.
    """
    key = answer_key(assignment)
    names = ["", *(f"student-{i}" for i in range(1, students))]
    sessions = [Session(assignment, name) for name in names]
    rows = []
    for question in key.assignment.questions.values():
        for wrong in (None, *question.wrong):
            lost = dict.fromkeys((p.name for p in question.properties), 0)
            recognized = 0
            for session in sessions:
                cases = session.cases(question.name)
                outcomes = [key.outcome(question, c.inputs, wrong, c.unchanged) for c in cases]
                failures = judge(key, question, cases, outcomes).failures
                for name, failure in failures.items():
                    lost[name] += failure is not None
                told = {
                    name for failure in failures.values() if failure for name in failure.recognized
                }
                recognized += wrong is not None and wrong.name in told
            expected = {p: students * bool(wrong and p in wrong.loses) for p in lost}
            problem = ""
            if lost != expected:
                problem = f"expected to lose {', '.join(wrong.loses) if wrong else 'nothing'}"
            rows.append(Row(question, wrong.name if wrong else "", lost, recognized, problem))
    return rows


def lines(rows: list[Row], students: int = STUDENTS) -> Iterator[str]:
    """The matrix as text: one block for each question, a column for each property."""
    for i, row in enumerate(rows):
        names = list(row.lost)
        width = max(len(r.wrong or "model answer") for r in rows)
        if not row.wrong:
            points = row.question.points
            yield from [""] * (i > 0)
            yield f"{row.question.name} ({points} point{'s' * (points > 1)})"
            yield f"  {'':{width}}  {'  '.join(names)}  recognized"
        cells = "  ".join(f"{_cell(row.lost[name], students):{len(name)}}" for name in names)
        told = f"{row.recognized}/{students}" if row.wrong else ""
        problem = f"   ← {row.problem}" if row.problem else ""
        yield f"  {row.wrong or 'model answer':{width}}  {cells}  {told}{problem}".rstrip()


def _cell(lost: int, students: int) -> str:
    return mark(not lost) if lost in (0, students) else f"✗{lost}"


def solution_differences(assignment: str, notebook: Path) -> list[str]:
    """The questions whose model answer is not the notebook's solution cell, with the reason."""
    cells = [
        "".join(cell["source"])
        for cell in json.loads(notebook.read_text("utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    found = []
    for question in answer_key(assignment).assignment.questions.values():
        name = defined_name(question.answer)
        if not any(same_code(cell, question.answer, name) for cell in cells):
            found.append(f"{question.name}: no cell of {notebook} is the model answer of {name}")
        if not any(f'"{assignment}/{question.name}"' in cell for cell in cells):
            found.append(f"{question.name}: no cell of {notebook} checks it")
    return found


def same_code(cell: str, answer: str, name: str) -> bool:
    """Whether a notebook's cell is the answer, but for comments, docstrings and `name = None`.

    >>> same_code("x = None\\n# think\\nx = 1 + 1", "x = 1+1", "x")
    True
    """
    try:
        bodies = [ast.parse(code).body for code in (cell, answer)]
    except SyntaxError:  # an IPython magic
        return False
    dumps = [
        [
            ast.dump(_without_docstrings(node))
            for node in body
            if ast.unparse(node) != f"{name} = None"
        ]
        for body in bodies
    ]
    return dumps[0] == dumps[1]


def _without_docstrings(tree: ast.stmt) -> ast.stmt:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree
