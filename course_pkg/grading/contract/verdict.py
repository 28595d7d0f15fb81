"""Verdicts: from the cases of a question and what an answer gave for them, to failures.

An outcome is what came back for one case: {"value": …}, {"error": "…"} or {"unanswered": True}.
This module sees values only; it runs no student's code and shows nothing to a student.

Chapter: appendix/for-instructors.
"""

from dataclasses import dataclass
from typing import Any

from .answer_key import AnswerKey
from .draws import Case
from .questions import Question, WrongAnswer
from .values import encode

UNANSWERED = "not answered yet"
INCOMPLETE = "no complete answer was submitted"
MAX_EXPLANATIONS = 2


@dataclass(frozen=True)
class Failure:
    """Why a property was lost: the smallest case that failed.

    expected: None for a number worked by hand, which a student should find, not read.
    recognized: the names of the wrong answers that give the same values, the best first.
    """

    reason: str
    inputs: Any = None
    expected: Any = None
    given: Any = None
    recognized: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What an answer to a question earned. failures: by property; None if it was earned."""

    question: Question
    failures: dict[str, Failure | None]

    @property
    def earned(self) -> int:
        """The points earned: a whole number from 0 to the question's points."""
        return sum(p.points for p in self.question.properties if self.failures[p.name] is None)


def judge(key: AnswerKey, question: Question, cases: list[Case], outcomes: Any) -> Verdict:
    """The verdict on a question. outcomes: one per case, in order; anything malformed fails."""
    if not isinstance(outcomes, list) or len(outcomes) != len(cases):
        return lost(question, INCOMPLETE)
    rows = [
        (case, outcome, _reason(key, question, case, outcome))
        for case, outcome in zip(cases, outcomes, strict=True)
    ]
    failures: dict[str, Failure | None] = {}
    for prop in question.properties:
        failed = [row for row in rows if row[0].property == prop.name and row[2] is not None]
        failures[prop.name] = _failure(key, question, failed, rows) if failed else None
    return Verdict(question, failures)


def lost(question: Question, reason: str = UNANSWERED) -> Verdict:
    """The verdict if nothing was submitted that can be judged: every property is lost."""
    return Verdict(question, {p.name: Failure(reason) for p in question.properties})


def _reason(key: AnswerKey, question: Question, case: Case, outcome: Any) -> str | None:
    match outcome:
        case {"unanswered": True}:
            return UNANSWERED
        case {"error": str(message)}:
            return message
        case {"value": given}:
            return key.difference(question, case.property, case.expected, given)
    return INCOMPLETE


def _failure(key: AnswerKey, question: Question, failed: list, rows: list) -> Failure:
    case, outcome, reason = min(failed, key=lambda row: len(encode(row[0].inputs)))
    if reason in (UNANSWERED, INCOMPLETE):
        return Failure(reason, case.inputs)
    expected = None if question.variant else case.expected
    given = outcome.get("value")
    return Failure(reason, case.inputs, expected, given, _recognize(key, question, failed, rows))


def _recognize(key: AnswerKey, question: Question, failed: list, rows: list) -> tuple[str, ...]:
    """The wrong answers that give what was given in every failing case of a property.

    Of several, the one comes first that agrees with the answer in most cases of the question.
    """
    found = []
    for wrong in question.losing(failed[0][0].property):
        if all(_agrees(key, question, wrong, *row[:2]) for row in failed):
            agreeing = sum(_agrees(key, question, wrong, *row[:2]) for row in rows)
            found.append((-agreeing, wrong.name))
    best = sorted(found, key=lambda pair: pair[0])[:MAX_EXPLANATIONS]
    return tuple(name for count, name in best if count == best[0][0])


def _agrees(
    key: AnswerKey, question: Question, wrong: WrongAnswer, case: Case, outcome: Any
) -> bool:
    if not isinstance(outcome, dict) or "value" not in outcome:
        return False
    value = key.outcome(question, case.inputs, wrong, case.unchanged).get("value")
    if value is None:
        return False
    return key.difference(question, case.property, value, outcome["value"]) is None
