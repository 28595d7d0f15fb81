"""Every mutant of a model answer loses a point, or is listed as equivalent, with the reason.

This guards the cases: that they are not too weak for a slip of one sign, number or name.
"""

import contextlib
import io
import time
import tomllib
from pathlib import Path

import pytest

from course_pkg.grading.questions import registry
from course_pkg.grading.questions.answer_key import answer_key, defined_name
from course_pkg.grading.questions.calling import outcome
from course_pkg.grading.questions.grading_session import GradingSession
from course_pkg.grading.questions.time_limits import OutOfTime, time_limit
from tests.exercises.mutants import mutants

LISTED = tomllib.loads((Path(__file__).parent / "equivalent_mutants.toml").read_text())
STUDENTS = ("", "ada", "bob")
LIMIT_S = 5  # a model answer needs a small part of it


def passes(key, question, sessions, code, limit_s=LIMIT_S) -> bool:
    """Whether an answer earns every point for every student, in time: a mutant may never end."""
    names: dict = {}
    exec(key.setup(question), names)
    try:
        with contextlib.redirect_stdout(io.StringIO()), time_limit(limit_s):
            exec(code, names)
            answer = names[defined_name(question.answer)]
            for session in sessions:
                for case in session.cases(question.name):
                    given = case.inputs, case.unchanged, key.callers
                    result = outcome(question.call, answer, *given)
                    if "value" not in result or key.difference(
                        question, case.property, case.expected, result["value"]
                    ):
                        return False
        return True
    except (OutOfTime, Exception):
        return False


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_mutant_loses_a_point_or_is_equivalent(assignment):
    key = answer_key(assignment)
    sessions = [GradingSession(assignment, student, answers=key) for student in STUDENTS]
    listed = LISTED.get(assignment, {})
    problems = []
    for name, question in registry.load(assignment).questions.items():
        if not question.call or question.artifact:
            continue
        for session in sessions:
            session.cases(name)
        began = time.monotonic()
        assert passes(key, question, sessions, question.answer), name
        limit_s = 2 + 30 * (time.monotonic() - began)
        changed = list(mutants(question.answer))
        assert changed, name
        survivors = {
            mutant for mutant, code in changed if passes(key, question, sessions, code, limit_s)
        }
        equivalent = listed.get(name, {})
        problems += [(name, "keeps every point", mutant) for mutant in survivors - set(equivalent)]
        problems += [(name, "is listed", mutant) for mutant in set(equivalent) - survivors]
        assert all(len(reason) > 10 for reason in equivalent.values()), name
    assert problems == []
