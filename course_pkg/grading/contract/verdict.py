"""Verdicts: from the cases of a question and what an answer gave for them, to failures.

An outcome is what came back for one case: {"value": …}, {"error": "…"} or {"unanswered": True}.
This module sees values only; it runs no student's code and shows nothing to a student.

Chapter: appendix/for-instructors.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

from course_pkg.grading.contract.answer_key import AnswerKey
from course_pkg.grading.contract.calling import AT_LINE, NOT_RUN
from course_pkg.grading.contract.comparators import Difference
from course_pkg.grading.contract.draws import Case
from course_pkg.grading.contract.plain_values import encode
from course_pkg.grading.contract.questions import Question, WrongAnswer
from course_pkg.grading.contract.recognition import finite, recognized, wrong_number

UNANSWERED = "not answered yet"
INCOMPLETE = "no complete answer was submitted"


@dataclass(frozen=True)
class Failure:
    """Why a property was lost: the smallest case that failed.

    expected: None for a number worked by hand, which a student should find, not read.
    If one field of a structure differs, expected and given are those of that field. recognized:
    the names of the mistakes that give the same values, the best first. note: what the student
    should know about the name in the notebook, or "".
    """

    reason: str
    inputs: Any = None
    expected: Any = None
    given: Any = None
    recognized: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """What an answer to a question earned. failures: by property; None if it was earned.

    late_s: if the last answer came too late to count, the seconds that it took; else None.
    follows: if it is not the right value, but follows correctly from the student's own values of
    earlier questions, their names.
    """

    question: Question
    failures: dict[str, Failure | None]
    late_s: float | None = None
    follows: tuple[str, ...] = ()

    @property
    def earned(self) -> int:
        """The points earned: a whole number from 0 to the question's points."""
        return sum(p.points for p in self.question.properties if self.failures[p.name] is None)


@dataclass(frozen=True)
class _Row:
    """One case, what came back for it, and why it failed, or None."""

    case: Case
    outcome: Any
    reason: str | None

    @property
    def is_error(self) -> bool:
        return isinstance(self.outcome, dict) and "error" in self.outcome

    @property
    def differing(self) -> tuple[Any, Any]:
        """The expected and the given value, or those of the one field that differs."""
        if isinstance(self.reason, Difference):
            return self.reason.expected, self.reason.given
        given = self.outcome.get("value") if isinstance(self.outcome, dict) else None
        return self.case.expected, given


def judge(
    key: AnswerKey, question: Question, cases: list[Case], outcomes: Any, explain: bool = True
) -> Verdict:
    """The verdict on a question. outcomes: one per case, in order; anything malformed fails.

    explain: whether to recognize mistakes, for which wrong answers are run.
    """
    if not isinstance(outcomes, list) or len(outcomes) != len(cases):
        return lost(question, INCOMPLETE)
    rows = [
        _Row(case, outcome, _reason(key, question, case, outcome))
        for case, outcome in zip(cases, outcomes, strict=True)
    ]

    @functools.cache  # properties share wrong answers, and running one may take a model
    def gives_the_same(wrong: WrongAnswer, index: int) -> bool:
        return _agrees(key, question, wrong, rows[index])

    values = [index for index, row in enumerate(rows) if not row.is_error]

    def agrees(wrong: WrongAnswer, index: int) -> bool:
        if not gives_the_same(wrong, index):
            return False
        # An error alone says little: the answer and the mistake must also share a value.
        return index in values or any(gives_the_same(wrong, other) for other in values)

    failures: dict[str, Failure | None] = {}
    for prop in question.properties:
        own = [i for i, row in enumerate(rows) if row.case.property == prop.name]
        failed = [i for i in own if rows[i].reason is not None]
        failure = _failure(question, [rows[i] for i in failed]) if failed else None
        if failure and explain:
            found = recognized(question.losing(prop.name), len(rows), failed, agrees)
            found = found or wrong_number(rows[i].differing for i in failed)
            failure = replace(failure, recognized=found)
        failures[prop.name] = failure
    return Verdict(question, failures)


def lost(question: Question, reason: str = UNANSWERED, late_s: float | None = None) -> Verdict:
    """The verdict if nothing was submitted that can be judged: every property is lost.

    late_s: the seconds that the answer took, if it came too late; it then replaces the reason.
    """
    if late_s is not None:
        reason = f"your answer {late(late_s, question.deadline)}"
    return Verdict(question, {p.name: Failure(reason) for p in question.properties}, late_s)


def late(seconds: float, limit: float) -> str:
    """Says that an answer came too late.

    >>> late(65.04, 60)
    'arrived after 65 s; the limit is 60 s'
    """
    digits = 0 if seconds >= limit + 1 else 1
    return f"arrived after {max(seconds, limit + 0.1):.{digits}f} s; the limit is {limit:g} s"


def is_unanswered(outcome: Any) -> bool:
    """Whether an outcome comes from an answer that is still to be written."""
    return isinstance(outcome, dict) and outcome.get("unanswered") is True


def _reason(key: AnswerKey, question: Question, case: Case, outcome: Any) -> str | None:
    match outcome:
        case {"unanswered": True}:
            return UNANSWERED
        case {"error": str(message)}:
            return message
        case {"value": given}:
            return key.difference(question, case.property, case.expected, given)
    return INCOMPLETE


def _failure(question: Question, failed: list[_Row]) -> Failure:
    """The smallest failing case; one that was not run is shown only if there is no other."""
    row = min(failed, key=lambda row: (row.reason == NOT_RUN, len(encode(row.case.inputs))))
    if question.artifact:  # its files are not shown; the reason says what was measured
        return Failure(str(row.reason))
    if row.reason in (UNANSWERED, INCOMPLETE):
        return Failure(row.reason, row.case.inputs)
    expected, given = row.differing
    shown = None if question.variant else expected
    return Failure(str(row.reason), row.case.inputs, shown, given)


def _agrees(key: AnswerKey, question: Question, wrong: WrongAnswer, row: _Row) -> bool:
    """Whether a wrong answer gives the outcome of a case: the same value, or the same error."""
    outcome = row.outcome
    if not isinstance(outcome, dict) or outcome.get("value", outcome.get("error")) is None:
        return False
    case = row.case
    ran = key.outcome(question, case.inputs, wrong, case.unchanged, case.followed)
    if row.is_error:
        return _error(ran) == _error(outcome)
    value = ran.get("value")
    if value is None:
        return False
    pair = finite(value), finite(outcome["value"])
    return key.difference(question, case.property, *pair) is None


def _error(outcome: dict[str, Any]) -> str | None:
    """The text of an error without the line that raised it."""
    error = outcome.get("error")
    return error.partition(AT_LINE)[0] if isinstance(error, str) else None
