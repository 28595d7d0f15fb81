"""Verdicts: from the cases of a question and what an answer gave for them, to failures.

An outcome is what came back for one case: {"value": …}, {"error": "…"} or {"unanswered": True}.
A mistake is recognized only if it gives the same value or error in every failing case of a
property. This module runs no student's code and shows nothing to a student.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from course_pkg.grading.questions.answer_key import AnswerKey
from course_pkg.grading.questions.calling import AT_LINE, NOT_RUN
from course_pkg.grading.questions.comparators import Difference, is_form
from course_pkg.grading.questions.draws import Case
from course_pkg.grading.questions.plain_values import Array, encode
from course_pkg.grading.questions.question import DEADLINE_S, Question, WrongAnswer

UNANSWERED = "not answered yet"
INCOMPLETE = "no complete answer was submitted"
MAX_EXPLANATIONS = 2
NOT_FINITE = {"nan": 23456.0, "inf": 34560.0, "-inf": -34560.0}  # numbers that no answer gives
NEAR = 1e-2  # relative: what is given may be rounded
ROUNDED = 0.05  # relative: a number this near may be rounded too much
MAX_DECIMALS = 3
# Mistakes of scale, by name: what the given number is, as a multiple of the expected one.
FACTORS = {"a percentage": 100.0, "a share": 0.01}
SAYS = {
    "a percentage": "you gave a percentage: your number is 100 times the expected one",
    "rounded": "you rounded too much: your number is close, so give more digits",
    "a share": "you gave a share, not a percentage: your number is 1/100 of the expected one",
    "another order": "you gave the right values, in another order than the task asks for",
}
MOST_ORDERED = 4  # items of which every order is tried


class _Nothing(Enum):
    """Where no value is: None is a value, which an answer may give."""

    NOTHING = "nothing"


NOTHING = _Nothing.NOTHING


@dataclass(frozen=True)
class Failure:
    """Why a property was lost: the smallest case that failed; NOTHING stands for what there is not.

    Attributes:
        recognized: the names of the mistakes that give the same values, the best first.
        note: a sentence, if the number fits the case of another name that the notebook has; or "".
        is_form: whether the form of what is given is wrong, so that no hint on the value helps.
    """

    reason: str
    inputs: Any = NOTHING
    expected: Any = NOTHING
    given: Any = NOTHING
    recognized: tuple[str, ...] = ()
    note: str = ""
    is_form: bool = False


@dataclass(frozen=True)
class Verdict:
    """What an answer to a question earned. failures: by property; None if it was earned.

    Attributes:
        late_s: if the last answer came too late to count, the seconds that it took; else None.
        follows: if the value is wrong, but follows correctly from the student's own values of
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


@dataclass(frozen=True, eq=False)
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
        given = self.outcome.get("value", NOTHING) if isinstance(self.outcome, dict) else NOTHING
        return self.case.expected, given


def judge(
    answers: AnswerKey, question: Question, cases: list[Case], outcomes: Any, explain: bool = True
) -> Verdict:
    """The verdict on a question. explain: recognize mistakes, for which wrong answers are run."""
    if not isinstance(outcomes, list) or len(outcomes) != len(cases):
        return lost(question, INCOMPLETE)
    rows = [
        _Row(case, outcome, _reason(answers, question, case, outcome))
        for case, outcome in zip(cases, outcomes, strict=True)
    ]

    @functools.cache  # properties share wrong answers, and running one may take a model
    def agrees(wrong: WrongAnswer, row: _Row) -> bool:
        return _agrees(answers, question, wrong, row)

    failures: dict[str, Failure | None] = {}
    for prop in question.properties:
        failed = [row for row in rows if row.case.property == prop.name and row.reason is not None]
        failure = _failure(question, failed) if failed else None
        if failure and explain:
            names = recognized(question.losing(prop.name), rows, failed, agrees)
            names = names or wrong_number(row.differing for row in failed)
            names = names or _another_order(answers, question, prop.name, failed)
            failure = replace(failure, recognized=names)
        failures[prop.name] = failure
    return Verdict(question, failures)


def lost(question: Question, reason: str = UNANSWERED, late_s: float | None = None) -> Verdict:
    """The verdict that loses every property. late_s: the seconds of a late answer, as reason."""
    if late_s is not None:
        reason = f"your answer {late(late_s)}"
    return Verdict(question, {p.name: Failure(reason) for p in question.properties}, late_s)


def late(seconds: float) -> str:
    """The reason of an answer that came too late."""
    digits = 0 if seconds >= DEADLINE_S + 1 else 1
    shown = max(seconds, DEADLINE_S + 0.1)
    return f"arrived after {shown:.{digits}f} s; the limit is {DEADLINE_S:g} s"


def is_unanswered(outcome: Any) -> bool:
    """Whether an outcome comes from an answer that is still to be written."""
    return isinstance(outcome, dict) and outcome.get("unanswered") is True


def _reason(answers: AnswerKey, question: Question, case: Case, outcome: Any) -> str | None:
    match outcome:
        case {"unanswered": True}:
            return UNANSWERED
        case {"error": str(message)}:
            return message
        case {"value": given}:
            return answers.difference(question, case.property, case.expected, given)
    return INCOMPLETE


def _failure(question: Question, failed: list[_Row]) -> Failure:
    """The smallest failing case; one that was not run is shown only if there is no other."""
    row = min(failed, key=lambda row: (row.reason == NOT_RUN, len(encode(row.case.inputs))))
    if question.artifact:  # its files are not shown; the reason says what was measured
        return Failure(str(row.reason))
    if row.reason in (UNANSWERED, INCOMPLETE):
        return Failure(row.reason, row.case.inputs)
    expected, given = row.differing
    shown = NOTHING if question.variant else expected
    # An error that no line of the answer raised is about how it is called, or how long it took.
    form = AT_LINE not in row.reason if row.is_error else is_form(row.reason)
    return Failure(str(row.reason), row.case.inputs, shown, given, is_form=form)


def _agrees(answers: AnswerKey, question: Question, wrong: WrongAnswer, row: _Row) -> bool:
    """Whether a wrong answer gives the outcome of a case: the same value, or the same error."""
    outcome = row.outcome
    if not isinstance(outcome, dict) or outcome.get("value", outcome.get("error")) is None:
        return False
    case = row.case
    ran = answers.outcome(question, case.inputs, wrong, case.unchanged, case.followed)
    if row.is_error:
        return _error(ran) == _error(outcome)
    value = ran.get("value")
    if value is None:
        return False
    pair = finite(value), finite(outcome["value"])
    return answers.difference(question, case.property, *pair) is None


def _another_order(
    answers: AnswerKey, question: Question, property_name: str, failed: list[_Row]
) -> tuple[str, ...]:
    """The mistake if one order of the given items would be right in every failing case."""
    values = [row.outcome.get("value") for row in failed if isinstance(row.outcome, dict)]
    lists = [value for value in values if isinstance(value, list | tuple)]
    count = len(lists[0]) if lists else 0
    if len(lists) != len(failed) or {len(value) for value in lists} != {count}:
        return ()
    if not 2 <= count <= MOST_ORDERED:
        return ()
    for order in itertools.permutations(range(count)):
        pairs = zip(failed, lists, strict=True)
        moved = ((row, type(value)(value[i] for i in order)) for row, value in pairs)
        if all(
            answers.difference(question, property_name, row.case.expected, value) is None
            for row, value in moved
        ):
            return ("another order",)
    return ()


def _error(outcome: dict[str, Any]) -> str | None:
    """The text of an error without the line that raised it."""
    error = outcome.get("error")
    return error.partition(AT_LINE)[0] if isinstance(error, str) else None


def recognized(
    losing: list[WrongAnswer],
    rows: list[_Row],
    failed: list[_Row],
    agrees: Callable[[WrongAnswer, _Row], bool],
) -> tuple[str, ...]:
    """The wrong answers that agree in every failing case of a property, and most over all rows."""
    agreeing_cases = {}
    for wrong in losing:
        if all(agrees(wrong, row) for row in failed):
            agreeing = [row for row in rows if agrees(wrong, row)]
            # An error alone says little: the answer and the mistake must also share a value.
            if not all(row.is_error for row in agreeing):
                agreeing_cases[wrong.name] = len(agreeing)
    most = max(agreeing_cases.values(), default=0)
    return tuple(name for name, count in agreeing_cases.items() if count == most)[:MAX_EXPLANATIONS]


def wrong_number(pairs: Iterable[tuple[Any, Any]]) -> tuple[str, ...]:
    """The mistake if every given number is 100 times the expected one, 1/100 of it, or rounded.

    Args:
        pairs: the expected and the given value of every failing case.

    Example:

        >>> wrong_number([(0.25, 25), (0.5, 50.0)]), wrong_number([(0.5333, 0.53)])
        (('a percentage',), ('rounded',))
    """
    pairs = list(pairs)
    if not pairs:
        return ()
    for name, factor in FACTORS.items():
        if all(_is_multiple(expected, given, factor) for expected, given in pairs):
            return (name,)
    return ("rounded",) if all(_is_rounded(*pair) for pair in pairs) else ()


def finite(value: Any) -> Any:
    """The value with other numbers for NaN and infinities, so that equal ones compare as equal."""
    match value:
        case float() if not math.isfinite(value):
            return NOT_FINITE["nan" if math.isnan(value) else str(value)]
        case Array() if "float" in value.dtype:
            import numpy as np

            numbers = value.numpy()
            if np.isfinite(numbers).all():
                return value
            nan, above, below = NOT_FINITE.values()
            return Array.of(np.nan_to_num(numbers, nan=nan, posinf=above, neginf=below))
        case dict():
            return {key: finite(item) for key, item in value.items()}
        case list() | tuple():
            return type(value)(finite(item) for item in value)
    return value


def says(question: Question) -> dict[str, str]:
    """What each mistake that can be recognized in answers to a question tells the student."""
    return {wrong.name: wrong.says for wrong in question.wrong} | SAYS


def _is_rounded(expected: Any, given: Any) -> bool:
    if not isinstance(expected, float) or not isinstance(given, int | float):
        return False
    if not abs(given) < 1e300:  # a whole number may be too large for a float
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
