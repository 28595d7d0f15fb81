"""Whatever a student's process sends, judging it ends, and costs that question only."""

from functools import cache

import numpy as np
import pytest

from course_pkg.grading.checker_process import safe_verdict
from course_pkg.grading.questions.grading_session import GradingSession
from course_pkg.grading.questions.plain_values import as_plain
from course_pkg.grading.questions.registry import assignments

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


class Counted(GradingSession):
    """A session that counts attempts to judge: a second one follows if the first takes too long."""

    attempts = 0

    def verdict(self, name, explain=True):
        self.attempts += 1
        return super().verdict(name, explain)


@cache
def session(assignment):
    return Counted(assignment, "ada", b"k")


@pytest.mark.parametrize("what", VALUES)
@pytest.mark.filterwarnings("ignore")
def test_hostile_values_lose_their_question_with_a_reason_at_the_first_attempt(what):
    value = as_plain(VALUES[what])
    wrong = []
    for assignment in assignments():
        asked = session(assignment)
        for name in asked.questions:
            cases = asked.inputs(name)
            asked.record(name, [{"value": value}] * len(cases))
            asked.attempts = 0
            verdict = safe_verdict(asked, name)
            reasons = [failure.reason for failure in verdict.failures.values() if failure]
            unclear = [r for r in reasons if not r or "could not be judged" in r]
            if verdict.earned or unclear or not reasons or asked.attempts != 1:
                wrong.append((assignment, name, verdict.earned, reasons, asked.attempts))
    assert wrong == []
