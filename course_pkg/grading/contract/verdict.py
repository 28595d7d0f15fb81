"""Verdicts: from the cases of a question and what an answer gave for them, to failures.

An outcome is what came back for one case: {"value": …}, {"error": "…"} or {"unanswered": True}.
This module sees values only; it runs no student's code and shows nothing to a student.

Chapter: appendix/for-instructors.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

from .answer_key import AnswerKey
from .calling import AT_LINE, NOT_RUN
from .comparators import Difference
from .draws import Case
from .questions import Question, WrongAnswer
from .recognition import finite, recognized, wrong_number
from .values import encode

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


def judge(
    key: AnswerKey, question: Question, cases: list[Case], outcomes: Any, explain: bool = True
) -> Verdict:
    """The verdict on a question. outcomes: one per case, in order; anything malformed fails.

    explain: whether to recognize mistakes, for which wrong answers are run.
    """
    if not isinstance(outcomes, list) or len(outcomes) != len(cases):
        return lost(question, INCOMPLETE)
    rows = [
        (case, outcome, _reason(key, question, case, outcome))
        for case, outcome in zip(cases, outcomes, strict=True)
    ]

    @functools.cache  # properties share wrong answers, and running one may take a model
    def gives_the_same(wrong: WrongAnswer, index: int) -> bool:
        return _agrees(key, question, wrong, *rows[index][:2])

    def agrees(wrong: WrongAnswer, index: int) -> bool:
        if not gives_the_same(wrong, index):
            return False
        # An error alone says little: the answer and the mistake must also share a value.
        return not _is_error(rows[index][1]) or any(
            gives_the_same(wrong, other)
            for other, (_, outcome, _) in enumerate(rows)
            if not _is_error(outcome)
        )

    failures: dict[str, Failure | None] = {}
    for prop in question.properties:
        failed = [
            i
            for i, (case, _, reason) in enumerate(rows)
            if case.property == prop.name and reason is not None
        ]
        failures[prop.name] = _failure(question, rows, failed) if failed else None
        if failed and explain:
            found = recognized(question.losing(prop.name), len(rows), failed, agrees)
            found = found or wrong_number(_differing(*rows[index]) for index in failed)
            failures[prop.name] = replace(failures[prop.name], recognized=found)
    return Verdict(question, failures)


def lost(question: Question, reason: str = UNANSWERED, late_s: float | None = None) -> Verdict:
    """The verdict if nothing was submitted that can be judged: every property is lost.

    late_s: the seconds that the answer took, if it came too late; it then replaces the reason.
    """
    if late_s is not None:
        reason = f"your answer {late(late_s, question.deadline)}"
    return Verdict(question, {p.name: Failure(reason) for p in question.properties}, late_s)


def late(seconds: float, limit: float) -> str:
    """That an answer came too late, in words.

    >>> late(65.04, 60)
    'arrived after 65 s; the limit is 60 s'
    """
    digits = 0 if seconds >= limit + 1 else 1
    return f"arrived after {max(seconds, limit + 0.1):.{digits}f} s; the limit is {limit:g} s"


def is_unanswered(outcome: Any) -> bool:
    """Whether an outcome is that of an answer that is still to be written."""
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


def _failure(question: Question, rows: list, failed: list[int]) -> Failure:
    """The smallest failing case; one that was not run is shown only if there is no other."""

    def order(index: int) -> tuple[bool, int]:
        case, _, reason = rows[index]
        return reason == NOT_RUN, len(encode(case.inputs))

    case, outcome, reason = rows[min(failed, key=order)]
    if question.artifact:  # its files are not shown; the reason says what was measured
        return Failure(str(reason))
    if reason in (UNANSWERED, INCOMPLETE):
        return Failure(reason, case.inputs)
    expected, given = _differing(case, outcome, reason)
    return Failure(str(reason), case.inputs, None if question.variant else expected, given)


def _differing(case: Case, outcome: Any, reason: str | None) -> tuple[Any, Any]:
    """The expected and the given value, or those of the one field that differs."""
    if isinstance(reason, Difference):
        return reason.expected, reason.given
    return case.expected, outcome.get("value") if isinstance(outcome, dict) else None


def _agrees(
    key: AnswerKey, question: Question, wrong: WrongAnswer, case: Case, outcome: Any
) -> bool:
    """Whether a wrong answer gives the outcome of a case: the same value, or the same error."""
    if not isinstance(outcome, dict) or outcome.get("value", outcome.get("error")) is None:
        return False
    ran = key.outcome(question, case.inputs, wrong, case.unchanged, case.followed)
    if _is_error(outcome):
        return _error(ran) == _error(outcome)
    value = ran.get("value")
    if value is None:
        return False
    pair = finite(value), finite(outcome["value"])
    return key.difference(question, case.property, *pair) is None


def _is_error(outcome: Any) -> bool:
    return isinstance(outcome, dict) and "error" in outcome


def _error(outcome: dict[str, Any]) -> str | None:
    """The text of an error without the line that raised it."""
    error = outcome.get("error")
    return error.partition(AT_LINE)[0] if isinstance(error, str) else None
