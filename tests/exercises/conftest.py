"""One graded class for each assignment, made once."""

import shutil
import tempfile
from pathlib import Path

import nbformat
import pytest

from course_pkg.grading.classroom.gradebook.keys import secret
from course_pkg.grading.classroom.gradebook.record import Store
from course_pkg.grading.classroom.runs.grade_class import Options, grade
from course_pkg.grading.classroom.runs.progress import ProgressDisplay
from course_pkg.sandbox.probe import probe
from tests.exercises.assignments import (
    EXERCISES,
    SOLUTIONS,
    Course,
    artifacts,
    assignments,
    notebook,
    with_answers,
    wrong_cells,
)

# One assignment that needs no torch shows in every run that the chain works from end to end; the
# others take minutes, and differ in their questions, which the matrix tests.
QUICK = "bleu"
IN_CI = ("lora-script", "quantization")  # an answer in files, and numbers that build on others
ROUNDS = 2  # of wrong answers, one for each question, that are graded as notebooks


def pytest_collection_modifyitems(items):
    for item in items:
        values = getattr(item, "callspec", None) and item.callspec.params
        if values and "chain" in values and values["chain"] != QUICK:
            item.add_marker(pytest.mark.exhaustive)
            if values["chain"] not in IN_CI:
                item.add_marker(pytest.mark.minutes)


@pytest.fixture(scope="session", params=assignments())
def assignment(request):
    return request.param


@pytest.fixture(scope="module", params=assignments())
def chain(request):
    """The name of each assignment in turn: all but one are exhaustive."""
    return request.param


@pytest.fixture(scope="module")
def rounds(chain):
    return wrong_cells(chain)[:ROUNDS]


def course_with_submissions(root, assignment, rounds):
    course = Course(root)
    course.submit("full", assignment, notebook(SOLUTIONS, assignment))
    course.submit("stub", assignment, notebook(EXERCISES, assignment))
    for number, row in enumerate(rounds, start=1):
        answers = {name: code for name, (_, code) in row.items()}
        answers |= dict.fromkeys(artifacts(assignment), "")  # one made with wrong answers is wrong
        nb = with_answers(notebook(SOLUTIONS, assignment), answers)
        course.submit(f"wrong-{number}", assignment, nbformat.from_dict(nb))
    return course


@pytest.fixture(scope="module")
def graded(chain, rounds):
    """A course in which nbgrader has graded the solution, the stub, and the wrong answers."""
    with tempfile.TemporaryDirectory(prefix=f"course-{chain}-") as folder:
        course = course_with_submissions(Path(folder), chain, rounds)
        for command in ("generate_assignment", "autograde"):
            done = course.nbgrader(command, chain)
            assert done.returncode == 0, done.stderr
        yield course


@pytest.fixture(scope="module")
def graded_by_us(chain, rounds):
    """The same submissions, graded by `course grade`: the records by student."""
    if not probe().ok:
        pytest.skip(f"no sandbox here: {probe().detail}")
    with tempfile.TemporaryDirectory(prefix=f"course-{chain}-") as folder:
        course = course_with_submissions(Path(folder), chain, rounds)
        shutil.copytree(EXERCISES, course.root / EXERCISES.name)
        options = Options(course.root / "submitted", jobs=2)
        with ProgressDisplay() as show:
            students = [record.student for record in grade(course.root, chain, options, show)]
        store = Store(course.root, secret(course.root))
        yield {student: store.load(chain, student) for student in students}
