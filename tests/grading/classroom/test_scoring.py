"""Why a submission could not be judged, in words that say what to do."""

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from course_pkg.grading.checker_process import as_json
from course_pkg.grading.classroom.execution.assignment import resolve
from course_pkg.grading.classroom.execution.runner_output import RunResult
from course_pkg.grading.classroom.runs.scoring import UNFINISHED, CheckerScoring, NotebookScoring
from course_pkg.grading.questions.grading_session import GradingSession
from course_pkg.grading.questions.question_record import mistakes_of
from tests.exercises.assignments import EXERCISES, notebook
from tests.tables import each_row


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


STUB = {"output_type": "error", "ename": "NotImplementedError", "evalue": ""}
WRONG = {"output_type": "error", "ename": "NameError", "evalue": "name 'x' is not defined"}


def unanswered(outputs=None, **fields):
    """The question `counts` of a submission without answers. outputs: by grade id."""
    nb = notebook(EXERCISES, "lora-math")
    judging = CheckerScoring(resolve("lora-math"), nb)
    sessions = GradingSession("lora-math", "ada")
    verdicts = as_json([sessions.verdict(name) for name in sessions.questions]).encode()
    at = {c.metadata.get("nbgrader", {}).get("grade_id"): n for n, c in enumerate(nb.cells)}
    by_index = {at[name]: made for name, made in (outputs or {}).items()}
    shown = {n: by_index.get(n, []) for n in range(len(nb.cells))}
    late = {at[name] for name in fields.pop("late", ())}
    for name in fields.pop("without", ()):
        del shown[at[name]]
    result = RunResult(verdicts=verdicts, outputs=shown, unfinished=late, **fields)
    by_name = {q.question: q for q in judging.questions(nb, result)}
    return by_name["counts"]


CRASH = "your answer's cell ended with an error, so nothing was checked: "
NAME = "NameError: name 'x' is not defined"


@each_row(
    ("submission", "why"),
    [
        ({}, ""),
        ({"outputs": {"counts": [STUB], "check-counts": [STUB]}}, ""),
        ({"outputs": {"counts": [WRONG]}}, CRASH + NAME),
        (
            {"outputs": {"counts": [STUB], "check-counts": [WRONG]}},
            f"its check ended with an error: {NAME}",
        ),
        ({"outputs": {"counts": [{"output_type": "error", "ename": 5}]}}, f"{CRASH}?: ?"),
        (
            {"late": ["counts"], "reason": "cell 20 took longer than 3 s"},
            f"{CRASH}cell 20 took longer than 3 s",
        ),
        (
            {"without": ["check-counts"], "reason": "the kernel died in cell 3"},
            "the kernel died in cell 3",
        ),
    ],
)
def test_what_left_a_question_without_an_answer_is_its_reason(submission, why):
    question = unanswered(**submission)
    assert question.unjudged == why and question.earned == 0
    (finding,) = mistakes_of(question)
    assert why[1:] in finding.diagnosis and finding.details == ()
    assert {p.failure.reason for p in question.properties} == {why or "not answered yet"}


def deep(levels=900):
    made = []
    for _ in range(levels):
        made = [made]
    return made


def result(value):
    return {"output_type": "execute_result", "data": {"text/plain": value}}


def plain(result):
    meta = {"grade_id": "t", "grade": True, "locked": True, "solution": False, "points": 2}
    released = new_notebook(cells=[new_code_cell("assert True", metadata={"nbgrader": meta})])
    (question,) = NotebookScoring(released, {}).questions(released, result)
    return question


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
    question = plain(RunResult(outputs={0: outputs}))
    assert question.earned == 0
    assert "nbgrader can't read the test's output" in question.properties[0].failure.reason


def test_a_plain_test_that_was_interrupted_earns_0_although_it_put_nothing_out():
    question = plain(RunResult(outputs={0: []}, unfinished={0}))
    assert (question.earned, question.properties[0].failure.reason) == (0, UNFINISHED)
    assert plain(RunResult(outputs={0: []})).earned == 2
