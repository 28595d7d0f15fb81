"""Whatever a student's process sends, judging it ends soon, and costs that question only."""

import time

import numpy as np
import pytest

from course_pkg.grading.checker import safe_verdict
from course_pkg.grading.contract.grading_session import GradingSession
from course_pkg.grading.contract.plain_values import as_plain
from course_pkg.grading.contract.registry import assignments, load

VALUES = {
    "a long text": "é" * 3_000_000,
    "a text that fits": "é" * 120_000,
    "lists that can't be sorted": {"windows": [["a"], [1], [None], {}], "nll": "é", "tokens": []},
    "large arrays": [np.zeros(1_000_000)] * 3,
    "a large array of large integers": np.full(8_000_000, 2**62),
    "infinite numbers": [np.full(3, np.nan), float("inf"), 10**999],
    "parts of wrong types": {
        part: [[]] for part in ("nll", "tokens", "windows", "nlls", "raises", "returned", "wrapped")
    },
    "many values": list(range(5_000)),
    "deep lists": [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]],
    "empty arrays of many dimensions": np.zeros((0,) * 16),
    "none": None,
}


@pytest.fixture(scope="module", params=assignments())
def session(request):
    """A session on each assignment."""
    return GradingSession(request.param, "ada", b"k")


@pytest.mark.parametrize("what", VALUES)
@pytest.mark.filterwarnings("ignore")
def test_hostile_values_lose_their_question_with_a_reason_and_in_time(session, what):
    value = as_plain(VALUES[what])
    for name in load(session.answers.assignment.name).questions:
        cases = session.inputs(name)
        began = time.monotonic()
        session.record(name, [{"value": value}] * len(cases))
        verdict = safe_verdict(session, name)
        assert verdict.earned == 0
        assert time.monotonic() - began < 10, name
        for failure in verdict.failures.values():
            assert failure.reason and "could not be judged" not in failure.reason, name
