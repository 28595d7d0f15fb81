"""Verdicts: from the cases of a question and what an answer gave for them, to points.

An outcome is what came back for one case: {"value": …}, {"error": "…"} or {"unanswered": True}.
This module sees values only; it neither runs answers nor shows anything to a student.

Chapter: appendix/for-instructors.
"""

from dataclasses import dataclass
from typing import Any

from .questions import Case, Question
from .values import as_crossing, encode

UNANSWERED = "not answered yet"


@dataclass(frozen=True)
class Failure:
    """The smallest case that failed, and why.

    reason: in words. misconception: the explanation of the wrong method that was recognized.
    expected: None for a number worked by hand, which a student should find, not read.
    """

    inputs: Any
    expected: Any
    given: Any
    reason: str
    misconception: str | None = None


@dataclass(frozen=True)
class PropertyResult:
    """What one property earned. failure is None when it was earned."""

    name: str
    says: str
    hint: str
    points: int
    failure: Failure | None

    @property
    def earned(self) -> int:
        """All of the property's points, or none."""
        return self.points if self.failure is None else 0


@dataclass(frozen=True)
class QuestionResult:
    """What one question earned, property by property."""

    question: str
    properties: tuple[PropertyResult, ...]

    @property
    def max_points(self) -> int:
        """The points of the question."""
        return sum(p.points for p in self.properties)

    @property
    def earned(self) -> int:
        """The points earned: a whole number from 0 to `max_points`."""
        return sum(p.earned for p in self.properties)


def judge(question: Question, cases: list[Case], outcomes: Any) -> QuestionResult:
    """The result of a question. outcomes: one per case, in order; anything malformed fails.

    >>> from course_pkg.grading.contract.compare import number
    >>> from course_pkg.grading.contract.questions import Property, draw_cases
    >>> p = Property("double", 2, "2x is given", "multiply", lambda rng, size: size)
    >>> q = Question("double", lambda x: 2 * x, number(), (p,))
    >>> cases = draw_cases(q, None)
    >>> judge(q, cases, [{"value": 2 * c.inputs} for c in cases]).earned
    2
    """
    if not isinstance(outcomes, list) or len(outcomes) != len(cases):
        outcomes = [{"error": "no complete answer was handed in"}] * len(cases)
    results = []
    for prop in question.properties:
        pairs = [
            (case, outcome)
            for case, outcome in zip(cases, outcomes, strict=True)
            if case.property == prop.name
        ]
        failure = _first_failure(question, pairs)
        results.append(PropertyResult(prop.name, prop.says, prop.hint, prop.points, failure))
    return QuestionResult(question.name, tuple(results))


def _first_failure(question: Question, pairs: list[tuple[Case, Any]]) -> Failure | None:
    failures = []
    for case, outcome in pairs:
        match outcome:
            case {"unanswered": True}:
                failures.append((case, None, UNANSWERED))
            case {"error": str(message)}:
                failures.append((case, None, message))
            case {"value": given}:
                if (
                    reason := _difference(question, case.property, case.expected, given)
                ) is not None:
                    failures.append((case, given, reason))
            case _:
                failures.append((case, None, "no complete answer was handed in"))
    if not failures:
        return None
    case, given, reason = min(failures, key=lambda failed: len(encode(failed[0].inputs)))
    explained = None if given is None else _recognize(question, failures)
    expected = case.expected if question.variant is None else None
    return Failure(case.inputs, expected, given, reason, explained)


def _difference(question: Question, prop: str, expected: Any, given: Any) -> str | None:
    """What the comparator says; a value of parts that it can't even compare is not equal."""
    try:
        return question.compares(prop)(expected, given)
    except Exception as error:  # the rest of the submission keeps its marks
        return f"the value can't be compared with what is wanted ({type(error).__name__})"


def _recognize(question: Question, failures: list[tuple[Case, Any, str]]) -> str | None:
    """The misconception that gives exactly what was given, in every case that failed."""
    for misconception in question.misconceptions:
        if all(
            case.property in misconception.breaks
            and given is not None
            and _difference(
                question, case.property, as_crossing(misconception.value(case.inputs)), given
            )
            is None
            for case, given, _ in failures
        ):
            return misconception.says
    return None
