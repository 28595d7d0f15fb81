"""Why a submission could not be judged, in words that say what to do."""

import pytest
from nbformat.v4 import new_notebook

from course_pkg.grading.runs.judging import Checked
from course_pkg.grading.runs.runner_output import RunResult
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
    judging = Checked("lora-math", notebook(EXERCISES, "lora-math"))
    with pytest.raises(ValueError, match="the checker") as error:
        judging.questions(new_notebook(), result)
    assert why in str(error.value)
    assert "grade it again with --regrade --student" in str(error.value)
