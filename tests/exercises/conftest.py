"""One graded class for each assignment, made once, and the matrix of wrong answers at the end."""

import shutil
from itertools import zip_longest

import nbformat
import pytest

from course_pkg.grading.runs.grader import grade
from course_pkg.grading.runs.options import Options
from course_pkg.grading.runs.progress import ProgressDisplay
from course_pkg.sandbox.probe import probe

from .assignments import EXERCISES, SOLUTIONS, Course, assignments, notebook, wrong_answers

MATRIX = pytest.StashKey[list]()
STOCK_ROUNDS = 3  # that stock nbgrader grades: seconds for each notebook


@pytest.fixture(scope="session", params=assignments())
def assignment(request):
    """The name of each assignment in turn."""
    return request.param


@pytest.fixture(scope="session")
def wrong_rounds(assignment):
    """The wrong answers dealt into rounds: one for each question, then the next for each, …"""
    by_question = {}
    for wrong in wrong_answers(assignment):
        by_question.setdefault(wrong.question, []).append(wrong)
    return [[w for w in row if w is not None] for row in zip_longest(*by_question.values())]


@pytest.fixture(scope="session")
def stock_rounds(wrong_rounds):
    """The rounds that stock nbgrader grades too: three wrong answers to each question."""
    return wrong_rounds[:STOCK_ROUNDS]


def course_with_hand_ins(root, assignment, rounds):
    """A course with the solution, the stub, and a notebook for each round of wrong answers."""
    from .assignments import with_answers

    course = Course(root)
    course.submit("full", assignment, notebook(SOLUTIONS, assignment))
    course.submit("stub", assignment, notebook(EXERCISES, assignment))
    for number, row in enumerate(rounds, start=1):
        answers = {wrong.question: wrong.code for wrong in row}
        nb = with_answers(notebook(SOLUTIONS, assignment), answers)
        course.submit(f"wrong-{number}", assignment, nbformat.from_dict(nb))
    return course


@pytest.fixture(scope="session")
def graded(assignment, stock_rounds, tmp_path_factory):
    """A course in which nbgrader has graded the solution, the stub, and three rounds."""
    root = tmp_path_factory.mktemp(f"course-{assignment}")
    course = course_with_hand_ins(root, assignment, stock_rounds)
    released = course.nbgrader("generate_assignment", assignment)
    assert released.returncode == 0, released.stderr
    done = course.nbgrader("autograde", assignment)
    assert done.returncode == 0, done.stderr
    return course


@pytest.fixture(scope="session")
def graded_by_us(assignment, wrong_rounds, tmp_path_factory):
    """The solution, the stub and every round, graded by `course grade`: the records by student."""
    if not probe().ok:
        pytest.skip(f"no sandbox here: {probe().detail}")
    course = course_with_hand_ins(
        tmp_path_factory.mktemp(f"ours-{assignment}"), assignment, wrong_rounds
    )
    shutil.copytree(EXERCISES, course.root / EXERCISES.name)
    options = Options(course.root / "submitted", jobs=2)
    with ProgressDisplay() as show:
        return {r.student: r for r in grade(course.root, assignment, options, show)}


@pytest.fixture(scope="session")
def matrix(request):
    """Rows for the table that is printed after the tests."""
    return request.config.stash.setdefault(MATRIX, [])


def pytest_terminal_summary(terminalreporter, config):
    rows = config.stash.get(MATRIX, [])
    if not rows:
        return
    terminalreporter.section("wrong answers: marks lost, and why")
    widths = [max(len(str(row[i])) for row in rows) for i in range(4)]
    for row in sorted(rows, key=lambda row: row[0]):
        cells = [str(cell).ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)]
        terminalreporter.line("  ".join(cells).rstrip())
