"""Every mutant of a model answer loses a point, or is listed as equivalent, with the reason."""

import contextlib
import io
import tomllib
from pathlib import Path

import pytest

from course_pkg.grading.contract import registry
from course_pkg.grading.contract.answer_key import answer_key, defined_name
from course_pkg.grading.contract.calling import OutOfTime, outcome, time_limit
from course_pkg.grading.contract.grading_session import GradingSession
from tests.exercises.assignments import assignments
from tests.exercises.mutants import mutants

LISTED = tomllib.loads((Path(__file__).parent / "equivalent_mutants.toml").read_text())
STUDENTS = ("", "ada", "bob")
LIMIT_S = 5  # a mutant may never end


def functions():
    """Every question that is answered by a function or class."""
    for name in assignments():
        for question in registry.load(name).questions.values():
            if question.call and not question.artifact:
                yield pytest.param(name, question.name, id=f"{name}/{question.name}")


def passes(key, question, sessions, code) -> bool:
    """Whether an answer earns every point for every student."""
    names: dict = {}
    exec(key.setup(question), names)
    try:
        with contextlib.redirect_stdout(io.StringIO()), time_limit(LIMIT_S):
            exec(code, names)
            answer = names[defined_name(question.answer)]
            for session in sessions:
                for case in session.cases(question.name):
                    given = case.inputs, case.unchanged, key.callers
                    found = outcome(question.call, answer, *given)
                    if "value" not in found or key.difference(
                        question, case.property, case.expected, found["value"]
                    ):
                        return False
        return True
    except (OutOfTime, Exception):
        return False


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("assignment", "name"), list(functions()))
def test_every_mutant_loses_a_point_or_is_equivalent(assignment, name):
    key = answer_key(assignment)
    question = key[name]
    sessions = [GradingSession(assignment, student, answers=key) for student in STUDENTS]
    for session in sessions:
        session.cases(name)
    assert passes(key, question, sessions, question.answer)
    found = list(mutants(question.answer))
    survivors = {mutant for mutant, code in found if passes(key, question, sessions, code)}
    listed = LISTED.get(assignment, {}).get(name, {})
    assert found
    assert sorted(survivors - set(listed)) == [], "these mutants keep every point"
    assert sorted(set(listed) - survivors) == [], "listed as equivalent, but lose a point"
    assert all(len(reason) > 10 for reason in listed.values())
