"""The record of one graded submission, and how the checker's results become part of it.

The checker has read a student's bytes, so its output is not trusted as it is: `checked_results`
accepts only verdicts that fit the questions of the assignment.

Chapter: appendix/for-instructors.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..contract.judge import UNANSWERED
from ..contract.outlines import Outline, PropertyOutline
from ..contract.texts import FailureRecord, PropertyRecord, QuestionRecord, one_line
from .states import State

MAX_RESULTS = 4 * 1024 * 1024  # bytes that a checker may write
MAX_TEXT = 1_000  # characters of one text in them


@dataclass(frozen=True)
class Record:
    """Everything that is known about one graded submission.

    reason: "" for State.GRADED, else one sentence. remarks: what else an instructor should know.
    start_s, run_s, write_s: seconds to start sandbox and kernel, to run the cells, and to write
    to the gradebook. peak_bytes: peak memory, None if nothing measures it. limits: what enforced
    memory and processes. sandbox: what confined it. key: `store.content_key`, hex. graded_at: ISO
    time, UTC.
    """

    student: str
    assignment: str
    state: State
    reason: str
    questions: tuple[QuestionRecord, ...]
    remarks: tuple[str, ...] = ()
    start_s: float = 0.0
    run_s: float = 0.0
    write_s: float = 0.0
    peak_bytes: int | None = None
    limits: str = ""
    sandbox: str = ""
    key: str = ""
    graded_at: str = ""

    @property
    def score(self) -> int:
        """The automatic points earned."""
        return sum(question.earned for question in self.questions)

    @property
    def max_score(self) -> float:
        """All automatic points of the assignment."""
        return float(sum(question.points for question in self.questions))


def nothing_earned(questions: Mapping[str, Outline]) -> tuple[QuestionRecord, ...]:
    """The questions of a submission that was not run: every property lost, as not answered.

    >>> nothing_earned({})
    ()
    """
    failure = FailureRecord(None, None, None, UNANSWERED)
    return tuple(
        QuestionRecord(
            name,
            tuple(
                PropertyRecord(p.name, p.says, p.hint, p.points, failure)
                for p in question.properties
            ),
        )
        for name, question in questions.items()
    )


def checked_results(text: bytes, questions: Mapping[str, Outline]) -> tuple[QuestionRecord, ...]:
    """The results that a checker wrote, if they judge every one of `questions`, in their order.

    Names, points and words must be those of `questions`, and a property earns all its points or
    none. The right value of a number worked by hand is dropped. Raises ValueError for anything
    else.

    >>> checked_results(b"[]", {})
    ()
    """
    if len(text) > MAX_RESULTS:
        raise ValueError(
            f"the results are {len(text):,} bytes; at most {MAX_RESULTS:,} are accepted"
        )
    rows = strict_json(text)
    if not isinstance(rows, list) or len(rows) != len(questions):
        raise ValueError(f"the results are not a list of the {len(questions)} questions")
    return tuple(
        _question(row, question) for row, question in zip(rows, questions.values(), strict=True)
    )


def _question(row: Any, question: Outline) -> QuestionRecord:
    _require(row, {"question": question.name, "points": question.points}, {"earned", "properties"})
    properties = row["properties"]
    if not isinstance(properties, list) or len(properties) != len(question.properties):
        raise ValueError(f"{question.name}: not the properties of the question")
    record = QuestionRecord(
        question.name,
        tuple(
            _property(question, p, given)
            for p, given in zip(question.properties, properties, strict=True)
        ),
    )
    if type(row["earned"]) is not int or row["earned"] != record.earned:
        raise ValueError(f"{question.name}: earned is not the sum over the properties")
    return record


def _property(question: Outline, p: PropertyOutline, row: Any) -> PropertyRecord:
    trusted = {"name": p.name, "says": p.says, "hint": p.hint, "points": p.points}
    _require(row, trusted, {"earned", "failure"})
    record = PropertyRecord(**trusted, failure=_failure(question, row["failure"]))
    if type(row["earned"]) is not int or row["earned"] != record.earned:
        raise ValueError(f"{question.name}/{p.name}: earned does not match the failure")
    return record


def _failure(question: Outline, row: Any) -> FailureRecord | None:
    if row is None:
        return None
    _require(row, {}, {"inputs", "expected", "given", "reason", "misconception"})
    for name, text in row.items():
        if text is None and name != "reason":
            continue
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise ValueError(f"{question.name}: {name} is not a short text")
    if row["misconception"] not in (None, *question.misconceptions):
        raise ValueError(f"{question.name}: no such misconception")
    shown = {name: _shown(row[name]) for name in ("inputs", "expected", "given")}
    if question.by_hand:  # the student should work it out
        shown["expected"] = None
    return FailureRecord(
        **shown, reason=one_line(row["reason"], MAX_TEXT), misconception=row["misconception"]
    )


def _shown(text: str | None) -> str | None:
    """A text to show; None for what the checker writes if there is nothing to show."""
    return None if text in (None, "None", "{}", "[]") else one_line(text, MAX_TEXT)


def _require(row: Any, trusted: dict[str, Any], others: set[str]) -> None:
    if not isinstance(row, dict) or set(row) != set(trusted) | others:
        raise ValueError(f"expected an object with {sorted(set(trusted) | others)}")
    for name, value in trusted.items():
        if type(row[name]) is not type(value) or row[name] != value:
            raise ValueError(f"{name} is not {value!r}, as in the question")


def strict_json(text: bytes) -> Any:
    """The value of a JSON text. Raises ValueError for NaN, a repeated name, and deep nesting.

    >>> strict_json(b'{"a": [1]}')
    {'a': [1]}
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a repeated name in one object")
        return dict(pairs)

    def never(name: str) -> Any:
        raise ValueError(f"{name} is not allowed")

    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=once, parse_constant=never)
    except RecursionError:
        raise ValueError("nested too deeply") from None
