"""A plain nbgrader assignment: asserts and hidden tests, in nbgrader's own folders."""

import contextlib
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_pkg.grading.classroom.execution.runner_output import State
from course_pkg.grading.classroom.gradebook.graded_notebook import is_test
from course_pkg.grading.classroom.gradebook.keys import secret
from course_pkg.grading.classroom.gradebook.record import Store, without_words
from course_pkg.grading.classroom.release import run_nbgrader
from course_pkg.grading.classroom.runs import grade_class
from course_pkg.grading.classroom.runs.grade_class import Options
from course_pkg.grading.classroom.runs.progress import ProgressDisplay
from course_pkg.grading.classroom.runs.run_summary import summary
from course_pkg.grading.classroom.runs.scoring import IN_KERNEL, NOT_RUN, UNFINISHED
from tests.grading.classroom import NEEDS_SANDBOX

from .test_progress import printed

ASSIGNMENT = "HW 1 (late)"  # as any folder may be called
STRICT = {"check": True, "capture_output": True}
NAMES = {"solution": "s", "grade": "g", "locked": "l"}
DOUBLE = "def double(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION"
TESTS = {  # name: points, source
    "visible": (2, "assert double(2) == 4"),
    "hidden": (
        3,
        "assert double(2) == 4\n### BEGIN HIDDEN TESTS\nassert double(-1.5) == -3\n"
        "### END HIDDEN TESTS",
    ),
    "partial": (2.5, "0.5 * sum(double(n) == 2 * n for n in (1, 2, 3, -1, -2))"),
    "warns": (1, "import warnings\nif double(7) != 14:\n    warnings.warn('odd')"),
    "says": (0.1, "'any text earns all'"),
}
ANSWERS = {
    "ada": "def double(x):\n    return x + x",
    "ben": "def double(x):\n    return 2 * abs(x)",  # fails a hidden test, and a part
    "chi": "def double(x):\n    raise NotImplementedError",
    "dan": "def double(x):\n    return 14 if x == 7 else 0",
}
SCORES = {"ada": 8.6, "ben": 2 + 1.5 + 1 + 0.1, "chi": 0.1, "dan": 1.1}  # as nbgrader's


def cell(make, name, source, **kind):
    meta = {
        "grade_id": name,
        "schema_version": 3,
        "task": False,
        **{k: kind.get(k, False) for k in NAMES},
        **kind,
    }
    return make(source, metadata={"nbgrader": meta})


def source() -> nbformat.NotebookNode:
    cells = [cell(new_code_cell, "double", DOUBLE, solution=True)]
    for name, (points, text) in TESTS.items():
        cells.append(cell(new_code_cell, name, text, grade=True, locked=True, points=points))
    cells.append(cell(new_markdown_cell, "why", "Why?", grade=True, solution=True, points=4))
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def write(path: Path, notebook: nbformat.NotebookNode) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    course = tmp_path_factory.mktemp("plain")
    (course / "nbgrader_config.py").write_text(
        "c = get_config()\nc.CourseDirectory.course_id='c'\n"
    )
    write(course / "source" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb", source())
    run_nbgrader(course, "generate_assignment", ASSIGNMENT, "--create", **STRICT)
    released = course / "release" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    assert "-1.5" not in released.read_text()
    for student, answer in ANSWERS.items():
        mine = nbformat.read(released, as_version=4)
        mine.cells[0].source = answer
        write(course / "submitted" / student / ASSIGNMENT / released.name, mine)
    return course


def scores(course: Path) -> dict[str, float]:
    from nbgrader.api import Gradebook

    with contextlib.closing(Gradebook(f"sqlite:///{course}/gradebook.db", "c")) as book:
        return {s.student.id: s.score for s in book.assignment_submissions(ASSIGNMENT)}


@pytest.mark.slow
@NEEDS_SANDBOX
def test_a_plain_assignment_gets_nbgraders_scores_inside_the_sandbox(course):
    dies = nbformat.read(course / "release" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb", as_version=4)
    dies.cells[0].source = "import os\ndef double(x):\n    os._exit(1)"
    write(course / "submitted" / "eve" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb", dies)
    with ProgressDisplay() as show:
        options = Options(course / "submitted", jobs=2)
        records = {r.student: r for r in grade_class.grade(course, ASSIGNMENT, options, show)}
    earned = {student: record.score for student, record in records.items()}
    assert earned == pytest.approx({**SCORES, "eve": 0})
    assert scores(course) == pytest.approx(earned)
    assert records["eve"].state == State.KERNEL_DIED
    records |= {name: Store(course, secret(course)).load(ASSIGNMENT, name) for name in records}
    lost = [p.failure.reason for q in records["eve"].questions for p in q.properties]
    assert lost == [UNFINISHED] + 4 * [NOT_RUN]
    assert {r.sandbox for r in records.values()} == {"bubblewrap"}

    reasons = {
        q.question: [p.failure.reason for p in q.properties if p.failure]
        for q in records["ben"].questions
    }
    assert reasons["hidden"] == ["the test failed: AssertionError"]
    assert reasons["partial"] == ["the test gave a part"] and not reasons["visible"]

    assert {r.unprotected for r in records.values()} == {IN_KERNEL}
    assert IN_KERNEL in printed(summary(list(records.values()), 1), width=300)
    for name in ("ben", "index"):
        page = (course / "results" / ASSIGNMENT / f"{name}.html").read_text("utf-8")
        assert "Not protected: " + IN_KERNEL.replace("'", "&#39;") in page
    path = course / "autograded" / "ben" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    graded = nbformat.read(path, as_version=4)
    (hidden,) = [c for c in graded.cells if is_test(c) and c.metadata.nbgrader.grade_id == "hidden"]
    assert "-1.5" in hidden.source and hidden.outputs[1].ename == "AssertionError"

    again = grade_class.grade(course, ASSIGNMENT, options, show)
    assert again == list(map(without_words, records.values()))  # nothing is graded a second time


@pytest.mark.exhaustive
def test_nbgrader_gives_the_same_scores(course, tmp_path):
    for name in ("source", "release", "nbgrader_config.py"):
        (tmp_path / name).symlink_to(course / name)
    for student in ANSWERS:
        (tmp_path / "submitted").mkdir(exist_ok=True)
        (tmp_path / "submitted" / student).symlink_to(course / "submitted" / student)
    run_nbgrader(tmp_path, "db", "assignment", "add", ASSIGNMENT, **STRICT)
    fresh = "--CourseDirectory.release_directory=fresh"
    run_nbgrader(tmp_path, "generate_assignment", ASSIGNMENT, "--force", fresh, **STRICT)
    run_nbgrader(tmp_path, "autograde", ASSIGNMENT, **STRICT)
    assert scores(tmp_path) == pytest.approx(SCORES)
