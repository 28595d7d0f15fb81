"""Why a submission could not be judged, in words that say what to do."""

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from course_pkg.classroom.assignment import resolve
from course_pkg.classroom.execution.runner_output import RunResult
from course_pkg.classroom.runs.scoring import UNFINISHED, CheckerScoring, NotebookScoring
from tests.exercises.assignments import EXERCISES, notebook


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (RunResult(), "it ended before it wrote its results"),
        (RunResult(no_verdicts="it took longer than 60 s"), "it took longer than 60 s"),
        (RunResult(verdicts=b"{"), "the checker's results can't be used (Expecting"),
        (RunResult(verdicts=b"[]"), "can't be used (the results are not a list"),
    ],
)
def test_a_checker_without_results_is_explained(result, why):
    judging = CheckerScoring(resolve("lora-math"), notebook(EXERCISES, "lora-math"))
    with pytest.raises(ValueError, match="the checker") as error:
        judging.questions(new_notebook(), result)
    assert why in str(error.value)
    assert "grade it again with --regrade --student" in str(error.value)


def deep(levels=900):
    made = []
    for _ in range(levels):
        made = [made]
    return made


def result(value):
    return {"output_type": "execute_result", "data": {"text/plain": value}}


def plain(result):
    """The record of a plain test of 2 points."""
    meta = {"grade_id": "t", "grade": True, "locked": True, "solution": False, "points": 2}
    released = new_notebook(cells=[new_code_cell("assert True", metadata={"nbgrader": meta})])
    (found,) = NotebookScoring(released, {}).questions(released, result)
    return found


@pytest.mark.parametrize(
    "outputs",
    [
        [{"output_type": "stream", "name": "stdout", "text": deep()}],
        [{"output_type": "error", "ename": deep(), "evalue": ""}],
        [result("0.5"), "no output"],
        [result(10**400)],
        ["no output", None],
    ],
    ids=["nested", "nested error", "junk after a result", "huge number", "junk"],
)
def test_a_plain_tests_odd_output_earns_0_and_is_no_fault_of_the_grader(outputs):
    found = plain(RunResult(outputs={0: outputs}))
    assert found.earned == 0
    assert "nbgrader can't read the test's output" in found.properties[0].failure.reason


def test_a_plain_test_that_was_interrupted_earns_0_although_it_put_nothing_out():
    found = plain(RunResult(outputs={0: []}, unfinished={0}))
    assert (found.earned, found.properties[0].failure.reason) == (0, UNFINISHED)
    assert plain(RunResult(outputs={0: []})).earned == 2
