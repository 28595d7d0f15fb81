"""One notebook gets the same points from `course check` and `course grade`, and from a lab.

RUNNERS has what gives points for the notebooks of CASES; a lab belongs there too.
"""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from course_pkg.grading import own_notebook
from course_pkg.grading.classroom.execution.runner_output import RunLimits
from course_pkg.sandbox.probe import probe
from tests.exercises.assignments import places
from tests.grading.classroom.school import School

NAME = "bleu"
OUTPUT = 100_000
LIMITS = RunLimits(output_bytes=OUTPUT)
FULL = 27


def cell_of(nb, question):
    return nb.cells[places(nb)[question].answer]


def locked_import(nb):
    (setup,) = [c for c in nb.cells if "import check" in c.source]
    setup.source += "\nimport string"
    cell_of(nb, "brevity-penalty").source += "\nassert string.digits\n"
    cell_of(nb, "corpus").source = "string.digits\n" + cell_of(nb, "corpus").source


def fails_first(nb):
    cell_of(nb, "corpus").source = "1 / 0\n" + cell_of(nb, "corpus").source
    cell_of(nb, "sentence").source += "\nreturn )"


def prints_much(nb):
    cell_of(nb, "corpus").source += "\nfor _ in range(2_000):\n    print('x' * 500)"


def prints_without_end(nb):
    at = places(nb)["corpus"].answer
    nb.cells.insert(at + 1, new_code_cell("while True:\n    print('x' * 500)", id="own"))


def without_metadata(nb):
    for number, cell in enumerate(nb.cells):
        cell.metadata = {"cell_id": str(number)}
        del cell["id"]
    nb.nbformat_minor = 4


def with_mark(nb):
    """A byte order mark, as some editors write it."""


def quits(nb):
    cell_of(nb, "corpus").source += "\nquit()"


def plots(nb):
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()"
    nb.cells.insert(1, new_code_cell(code, id="own"))


CASES = {  # the points by program that each earns, where that is the same in every run
    locked_import: FULL - 8,
    fails_first: FULL - 8 - 4,
    prints_much: FULL,
    prints_without_end: FULL,
    without_metadata: FULL,
    with_mark: FULL,
    quits: None,
    plots: FULL,
}


def checked(path):
    said = []
    own_notebook.check_notebook(path, NAME, LIMITS.cell_timeout_s, OUTPUT, said.append)
    matches = (re.match(rf"{NAME}/(\S+): (\d+) of", text) for text in said)
    return {match[1]: int(match[2]) for match in matches if match}, "\n".join(said)


@pytest.fixture(scope="module")
def school(tmp_path_factory):
    """A class whose students are the cases, graded; the records by student."""
    if not probe().ok:
        pytest.skip(f"no sandbox here: {probe().detail}")
    made = School(tmp_path_factory.mktemp("same") / "course", NAME)
    for change in CASES:
        nb = made.answers()
        change(nb)
        made.write(change.__name__, nb)
        if change is with_mark:
            path = made.path(change.__name__)
            path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    made.records = made.grade(limits=LIMITS)
    return made


def graded(school, student):
    record = school.records[student]
    said = " ".join((record.reason, *record.remarks))
    return {question.question: question.earned for question in record.questions}, said


RUNNERS = {"check": lambda school, student: checked(school.path(student)), "grade": graded}


@pytest.mark.slow
@pytest.mark.parametrize("change", CASES)
def test_a_notebook_earns_the_same_points_everywhere(school, change):
    results = {name: run(school, change.__name__) for name, run in RUNNERS.items()}
    points = {name: earned for name, (earned, _) in results.items()}
    assert points["check"] == points["grade"], results
    if CASES[change] is not None:
        assert sum(points["grade"].values()) == CASES[change], results


SAYS = {  # what each runner says
    locked_import: ("the locked cell setup had been changed", "the locked cell setup had been"),
    fails_first: (
        "ZeroDivisionError",
        "corpus: your answer's cell ended with an error, so nothing",
    ),
    prints_much: ("put out more than 100 kB", "put out more than 100 kB"),
    prints_without_end: ("put out far too much", "put out far too much"),
    quits: (r"code cell \d+ \(`.*`\) ended the kernel", r"the kernel died in cell \d+, by quit"),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", SAYS)
def test_what_was_done_differently_is_said(school, change):
    for says, run in zip(SAYS[change], RUNNERS.values(), strict=True):
        assert re.search(says, run(school, change.__name__)[1]), says


@pytest.mark.slow
def test_a_plot_is_in_the_graded_copy(school):
    kinds = {
        kind
        for cell in school.autograded("plots").cells
        for output in cell.get("outputs", ())
        for kind in output.get("data", {})
    }
    assert "image/png" in kinds


@pytest.mark.slow
def test_the_output_before_the_limit_is_shown(school):
    text = "".join(
        output.get("text", "")
        for cell in school.autograded("prints_much").cells
        for output in cell.get("outputs", ())
    )
    assert text.count("x") > 1_000 and "the rest is not shown" in text
    nbformat.validate(school.autograded("prints_much"))
