"""The author's matrix of an assignment, which `course author-check NAME` prints.

For a number of students, the model answer must earn every point, and each wrong answer must lose
exactly the properties that it names and be recognized in what a student is told.
"""

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from pathlib import Path

from course_pkg.common.fingerprints.structure import structure
from course_pkg.grading import guesses
from course_pkg.grading.questions import registry
from course_pkg.grading.questions.answer_key import AnswerKey, answer_key, defined_name
from course_pkg.grading.questions.display import mark
from course_pkg.grading.questions.draws import Case
from course_pkg.grading.questions.grading_session import GradingSession
from course_pkg.grading.questions.question import Question, WrongAnswer
from course_pkg.grading.questions.question_record import points_text
from course_pkg.grading.questions.verdict import judge

STUDENTS = 25


@dataclass(frozen=True)
class MatrixRow:
    """One answer to one question, over all students.

    Attributes:
        wrong: its name, "" for the model answer.
        lost: for each property, how many students lost it.
        recognized: how many would be told of it.
        problem: what is not as `questions.toml` says, or "".
    """

    question: Question
    wrong: str
    lost: dict[str, int]
    recognized: int
    problem: str = ""


def matrix(assignment: str, students: int = STUDENTS) -> list[MatrixRow]:
    """The rows of an assignment; the first student is the reader without a name."""
    answers = answer_key(assignment)
    names = ["", *(f"student-{i}" for i in range(1, students))]
    sessions = [GradingSession(assignment, name, answers=answers) for name in names]
    return [
        _row(answers, question, wrong, [session.cases(question.name) for session in sessions])
        for question in answers.assignment.questions.values()
        if not question.artifact  # to make one takes minutes; its own tests do
        for wrong in (None, *question.wrong)
    ]


def _row(
    answers: AnswerKey, question: Question, wrong: WrongAnswer | None, drawn: list[list[Case]]
) -> MatrixRow:
    lost = dict.fromkeys((p.name for p in question.properties), 0)
    recognized = 0
    for cases in drawn:
        outcomes = [answers.outcome(question, c.inputs, wrong, c.unchanged) for c in cases]
        failures = judge(answers, question, cases, outcomes).failures
        told = set()
        for name, failure in failures.items():
            if failure is not None:
                lost[name] += 1
                told.update(failure.recognized)
        if wrong is not None and wrong.name in told:
            recognized += 1
    loses = wrong.loses if wrong else ()
    problem = ""
    if lost != {name: len(drawn) if name in loses else 0 for name in lost}:
        problem = f"expected to lose only {', '.join(loses) or 'nothing'}, for every student"
    return MatrixRow(question, wrong.name if wrong else "", lost, recognized, problem)


def lines(rows: list[MatrixRow], students: int = STUDENTS) -> Iterator[str]:
    """The matrix as text: all students earn ✓ and lose ✗; 3 of them lose ✗ 3/25."""
    width = max(len(row.wrong or "model answer") for row in rows)
    for i, row in enumerate(rows):
        if not row.wrong:
            if i > 0:
                yield ""
            told = [f"{p.name} {p.points}" for p in row.question.properties if p.attested]
            attested = f"; attested: {', '.join(told)}" if told else ""
            yield f"{row.question.name} ({points_text(row.question.points)}{attested})"
            yield f"  {'':{width}}  {'  '.join(row.lost)}  recognized"
        cells = "  ".join(f"{_cell(row.lost[name], students):{len(name)}}" for name in row.lost)
        recognized = f"{row.recognized}/{students}" if row.wrong else ""
        problem = f"   ← {row.problem}" if row.problem else ""
        name = row.wrong or "model answer"
        yield f"  {name:{width}}  {cells}  {recognized}{problem}".rstrip()


def _cell(lost: int, students: int) -> str:
    return mark(not lost) if lost in (0, students) else f"✗ {lost}/{students}"


def can_be_drawn(assignment: str) -> bool:
    """Whether the files are there from which cases are drawn."""
    return all((_folder(assignment) / name).is_file() for name in ("questions.toml", "cases.py"))


def missing(assignment: str, course: Path) -> list[str]:
    """The parts that an assignment still lacks, in the order in which they are written.

    Raises:
        UnknownQuestion: it has neither a notebook nor a folder of questions.
    """
    folder = _folder(assignment)
    notebook = _notebook(course, "solutions", assignment)
    if not folder.is_dir() and not notebook.is_file():
        registry.folder(assignment)
    parts = {
        notebook: "write the tasks with their solutions",
        folder / "questions.toml": "write the questions, their points and wrong answers",
        folder / "cases.py": "write what draws the cases and gives the right values",
        folder / "__init__.py": "add an empty one",
        _notebook(course, "exercises", assignment): f"run `course release {assignment}`",
    }
    lacking = [
        f"{path} does not exist: {todo}" for path, todo in parts.items() if not path.is_file()
    ]
    menu = course / "book" / "exercises.md"
    if not menu.is_file() or f"`{assignment}`" not in menu.read_text("utf-8"):
        lacking.append(f"{menu} doesn't name `{assignment}`: add its line")
    return lacking


def _folder(assignment: str) -> Path:
    return registry.ASSIGNMENTS / assignment.replace("-", "_")


def _notebook(course: Path, kind: str, assignment: str) -> Path:
    return course / kind / assignment / f"{assignment}.ipynb"


def problems(assignment: str, course: Path) -> list[str]:
    """What is wrong with an assignment that has all its parts, beyond its matrix, in sentences."""
    sentences = list(guesses.problems(assignment))
    notebook = _notebook(course, "solutions", assignment)
    if not notebook.is_file():  # `missing` says so
        return sentences
    cells = [
        {**cell, "source": "".join(cell["source"])}
        for cell in json.loads(notebook.read_text("utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    questions = registry.load(assignment).questions.values()
    sentences += [text for q in questions for text in _differences(assignment, q, cells)]
    by_hand = sum(q.points for q in questions if q.variant)
    total = sum(cell["metadata"].get("nbgrader", {}).get("points", 0) for cell in cells)
    if 5 * by_hand > total:
        sentences.append(
            f"numbers worked by hand have {by_hand} of {total} points; at most a fifth"
        )
    attested = sum(p.points for q in questions for p in q.properties if p.attested)
    if 10 * attested > total:
        sentences.append(f"attested properties have {attested} of {total} points; at most a tenth")
    return sentences


def _differences(assignment: str, question: Question, cells: list[dict]) -> Iterator[str]:
    name = defined_name(question.answer)
    call = f'"{assignment}/{question.name}"'
    if not any(same_code(cell["source"], question.answer, name) for cell in cells):
        yield f"{question.name}: no cell is the model answer of {name}{_nearest(question, cells)}"
    points = [
        cell["metadata"].get("nbgrader", {}).get("points")
        for cell in cells
        if call in cell["source"]
    ]
    if points != [question.points]:
        yield f"{question.name}: expected one cell with check({call}, …), {question.points} points"


def _nearest(question: Question, cells: list[dict]) -> str:
    """How the most similar cell differs from the model answer."""
    answer = question.answer.strip().splitlines()
    sources = [cell["source"].splitlines() for cell in cells]
    nearest = max(sources, key=lambda one: SequenceMatcher(None, answer, one).ratio(), default=[])
    diff = unified_diff(answer, nearest, "questions.toml", "the notebook", lineterm="", n=1)
    return "".join(f"\n    {line}" for line in diff)


def same_code(cell: str, answer: str, name: str) -> bool:
    """Whether a notebook's cell is the answer, but for comments, docstrings and `name = None`."""
    try:
        bodies = [ast.parse(code).body for code in (cell, answer)]
    except SyntaxError:  # an IPython magic
        return False
    first, second = (
        [structure(n) for n in body if ast.unparse(n) != f"{name} = None"] for body in bodies
    )
    return first == second
