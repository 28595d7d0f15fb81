"""Verdicts: from the cases of a question and what an answer gave for them, to failures.

An outcome is what came back for one case: {"value": …}, {"error": "…"} or {"unanswered": True}.
This module sees values only; it runs no student's code and shows nothing to a student. A mistake
is recognized if it gives what was given in every failing case of a property: one of the question's
wrong answers, or one that is made everywhere, such as a percentage in place of a share.

Chapter: appendix/for-instructors.
"""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from course_pkg.grading.contract.answer_key import AnswerKey
from course_pkg.grading.contract.calling import NOT_RUN
from course_pkg.grading.contract.comparators import Difference
from course_pkg.grading.contract.draws import Case
from course_pkg.grading.contract.plain_values import Array, encode
from course_pkg.grading.contract.questions import Question, WrongAnswer

UNANSWERED = "not answered yet"
INCOMPLETE = "no complete answer was submitted"
MAX_EXPLANATIONS = 2
NEAR = 1e-2  # relative: what is given may be rounded
ROUNDED = 0.05  # relative: a number this near may be rounded too much
MAX_DECIMALS = 3
# Mistakes of scale, by name: what the given number is, as a multiple of the expected one.
FACTORS = {"a percentage": 100.0, "a share": 0.01}
SAYS = {
    "a percentage": "you gave a percentage: your number is 100 times the expected one",
    "rounded": "you rounded too much: your number is close, so give more digits",
    "a share": "you gave a share, not a percentage: your number is 1/100 of the expected one",
}


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
    def agrees(wrong: WrongAnswer, index: int) -> bool:
        return _agrees(key, question, wrong, rows[index])

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
    if not isinstance(row.outcome, dict) or "value" not in row.outcome:
        return False
    case = row.case
    ran = key.outcome(question, case.inputs, wrong, case.unchanged, case.followed)
    value = ran.get("value")
    if value is None:
        return False
    return key.difference(question, case.property, value, row.outcome["value"]) is None


def recognized(
    losing: list[WrongAnswer],
    count: int,
    failed: list[int],
    agrees: Callable[[WrongAnswer, int], bool],
) -> tuple[str, ...]:
    """The wrong answers that give what was given in every failing case of a property.

    agrees: whether a wrong answer gives what was given for the case of that index. Of several, the
    one comes first that agrees with the answer in most of the `count` cases.
    """
    found = [
        (sum(agrees(wrong, index) for index in range(count)), wrong.name)
        for wrong in losing
        if all(agrees(wrong, index) for index in failed)
    ]
    most = max((agreeing for agreeing, _ in found), default=0)
    return tuple(name for agreeing, name in found if agreeing == most)[:MAX_EXPLANATIONS]


def wrong_number(pairs: Iterable[tuple[Any, Any]]) -> tuple[str, ...]:
    """The mistake if every given number is 100 times the expected one, 1/100 of it, or rounded.

    pairs: the expected and the given value of every failing case.

    >>> wrong_number([(0.25, 25), (0.5, 50.0)]), wrong_number([(45.2, 0.452)])
    (('a percentage',), ('a share',))
    >>> wrong_number([(0.5333, 0.53)]), wrong_number([(0.5333, 0.54)])
    (('rounded',), ())
    """
    pairs = list(pairs)
    if not pairs:
        return ()
    for name, factor in FACTORS.items():
        if all(_is_multiple(expected, given, factor) for expected, given in pairs):
            return (name,)
    return ("rounded",) if all(_is_rounded(*pair) for pair in pairs) else ()


def says(question: Question) -> dict[str, str]:
    """What each mistake that can be recognized in answers to a question tells the student."""
    return {wrong.name: wrong.says for wrong in question.wrong} | SAYS


def _is_rounded(expected: Any, given: Any) -> bool:
    if not isinstance(expected, float) or not isinstance(given, int | float):
        return False
    if not math.isclose(given, expected, rel_tol=ROUNDED) or (abs(given) < 5 and given % 1 == 0):
        return False  # a small whole number, such as 1 for a share, is another mistake
    return any(round(expected, digits) == given for digits in range(MAX_DECIMALS + 1))


def _is_multiple(expected: Any, given: Any, factor: float) -> bool:
    if isinstance(expected, Array) and isinstance(given, Array):
        import numpy as np

        if expected.shape != given.shape:
            return False
        right, other = (a.numpy().astype("float64") for a in (expected, given))
        return bool(right.any()) and bool(np.allclose(other, factor * right, NEAR, 0.0))
    if isinstance(given, Array) and given.shape == ():
        given = given.numpy().item()
    if not isinstance(expected, float) or not isinstance(given, int | float):
        return False  # a whole number is a count
    if not expected or not abs(given) < 1e300:
        return False
    return math.isclose(given, factor * expected, rel_tol=NEAR)
