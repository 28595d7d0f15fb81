"""The record of one graded submission: its state, and what each question earned.

The checker has read a student's bytes, so its results are not trusted as they are:
`checked_results` accepts only verdicts that fit the questions of the assignment.

Chapter: appendix/for-instructors.
"""

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from course_pkg.grading.questions.display import one_line
from course_pkg.grading.questions.question import Question
from course_pkg.grading.questions.question_record import (
    FailureRecord,
    QuestionRecord,
    explanations,
    question_record,
)
from course_pkg.grading.questions.verdict import UNANSWERED, says

MAX_RESULTS = 4 * 1024 * 1024  # bytes that a checker may write
MAX_TEXT = 1_000  # characters of one text in them
IN_KERNEL = (
    "the tests ran in the student's kernel, where code can forge points and read hidden tests"
)


class State(StrEnum):
    """How the grading of a submission ended. Points earned before the end are kept.

    >>> State("kernel-died").means
    'the kernel died; later cells were not run'
    """

    GRADED = "graded", "every cell was run"
    ANSWER_LATE = (
        "answer-late",
        "one or more answers came after their question's time limit and don't count",
    )
    CELL_TIMED_OUT = (
        "cell-timed-out",
        "one or more cells took too long and were interrupted; the others ran",
    )
    TIMED_OUT = (
        "timed-out",
        "the time limit of the submission was reached; later cells were not run",
    )
    KERNEL_DIED = "kernel-died", "the kernel died; later cells were not run"
    OUT_OF_MEMORY = "out-of-memory", "the memory limit was exceeded; later cells were not run"
    TOO_MUCH_OUTPUT = (
        "too-much-output",
        "one or more cells put out far too much, and were interrupted: see its reason",
    )
    UNREADABLE = "unreadable", "the file is not a readable notebook; nothing was run"
    REFUSED = "refused", "the submission was not accepted; nothing was run"
    RECORD_CHANGED = (
        "record-changed",
        "the stored record was changed by somebody else; nothing was graded",
    )
    GRADING_ERROR = (
        "grading-error",
        "the grader failed, which is not the student's fault: grade it again",
    )
    WORKERS_LOST = (
        "workers-lost",
        "three workers of the cluster ended while they graded it: see its reason",
    )
    WAITING = (
        "waiting: needs a GPU",
        "it has no score yet: run `course grade` again on a machine with a GPU",
    )

    means: str

    def __new__(cls, value: str, means: str) -> "State":
        """A state with its name, and what it means in a sentence."""
        state = str.__new__(cls, value)
        state._value_ = value
        state.means = means
        return state

    @property
    def has_score(self) -> bool:
        """Whether the score says something about the student's work."""
        none = (State.RECORD_CHANGED, State.GRADING_ERROR, State.WORKERS_LOST, State.WAITING)
        return self not in none


@dataclass(frozen=True)
class Record:
    """Everything that is known about one graded submission.

    reason: "" for State.GRADED, else one sentence. remarks: what else an instructor should know.
    start_s, run_s, write_s: seconds to start sandbox and kernel, to run the cells, and to write
    to the gradebook. peak_bytes: peak memory, None if nothing measures it. limits: what enforced
    memory and processes. sandbox: what confined it. unprotected: what could be forged all the
    same, "" for nothing. files: `keys.digest` of what was submitted, "" if unknown. key:
    `store.content_key`, hex. graded_at: ISO time, UTC. gpu: the name of the GPU that it had, ""
    for none. gpu_peak_bytes: the most of its memory in use, None if unknown. submitted: while it
    waits, the ISO time of the submission, for the late penalty; "" if unknown.
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
    unprotected: str = ""
    files: str = ""
    key: str = ""
    graded_at: str = ""
    gpu: str = ""
    gpu_peak_bytes: int | None = None
    submitted: str = ""

    @property
    def score(self) -> float:
        """The automatic points earned: a whole number wherever a checker judged."""
        total = math.fsum(question.earned for question in self.questions)
        return int(total) if total.is_integer() else total

    @property
    def is_unsafe(self) -> bool:
        """Whether the submission was graded without a sandbox."""
        return self.sandbox.startswith("NONE")

    @property
    def max_score(self) -> float:
        """All automatic points of the assignment."""
        return math.fsum(question.points for question in self.questions)


def without_words(record: Record) -> Record:
    """The record, without what its lost properties say in the student's words; notes stay.

    This is what is kept of a whole class in memory: records without words share their questions.
    `with_words` is the other way.
    """
    return replace(record, questions=tuple(_without_words(q) for q in record.questions))


def with_words(record: Record, stored: Record | None) -> Record:
    """A record with the words of the stored one, if that is of the same grading."""
    if stored is None or stored.graded_at != record.graded_at:
        return record
    if without_words(stored).questions != without_words(record).questions:
        return record
    return replace(record, questions=stored.questions)


def _without_words(question: QuestionRecord) -> QuestionRecord:
    properties = []
    for p in question.properties:
        if p.failure is not None and p.failure.reason != UNANSWERED:
            p = replace(p, failure=FailureRecord("", note=p.failure.note))
        properties.append(p)
    return _shared(replace(question, properties=tuple(properties)))


@functools.lru_cache(maxsize=2**12)
def _shared(question: QuestionRecord) -> QuestionRecord:
    """The first of the questions that are equal to this one, so that equal ones share memory."""
    return question


def checked_results(text: bytes, questions: Mapping[str, Question]) -> tuple[QuestionRecord, ...]:
    """The verdicts that a checker wrote, if they judge every one of `questions`, in their order.

    Points and words are those of `questions`; a property earns all its points or none. The right
    value of a number worked by hand is dropped. Raises ValueError for anything else.

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


def _question(row: Any, question: Question) -> QuestionRecord:
    _require(row, {"question", "failures", "late_s", "follows"})
    if row["question"] != question.name:
        raise ValueError(f"expected the question {question.name}")
    _require(row["failures"], {p.name for p in question.properties})
    failures = {name: _failure(question, found) for name, found in row["failures"].items()}
    late_s = row["late_s"]
    if late_s is not None and not (type(late_s) in (int, float) and 0 < late_s < 1e6):
        raise ValueError(f"{question.name}: late_s is not a number of seconds")
    follows = row["follows"]
    if follows not in ([], list(question.follows)) or (follows and any(failures.values())):
        raise ValueError(f"{question.name}: `follows` does not fit the question")
    return question_record(question, failures, late_s, tuple(follows))


def _failure(question: Question, row: Any) -> FailureRecord | None:
    if row is None:
        return None
    _require(row, {"inputs", "expected", "given", "reason", "note", "recognized", "is_form"})
    texts = {name: row[name] for name in ("inputs", "expected", "given", "reason", "note")}
    for name, text in texts.items():
        if text is None and name not in ("reason", "note"):
            continue
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise ValueError(f"{question.name}: {name} is not a short text")
    names = row["recognized"]
    if not isinstance(names, list) or not set(map(str, names)) <= says(question).keys():
        raise ValueError(f"{question.name}: no such wrong answer")
    shown = {name: _shown(texts[name]) for name in ("inputs", "expected", "given")}
    if question.variant:  # the student should work it out
        shown["expected"] = None
    reason, note = (one_line(texts[name], MAX_TEXT) for name in ("reason", "note"))
    told = explanations(question, names)
    is_form = row["is_form"] is True
    return FailureRecord(reason, **shown, explanations=told, note=note, is_form=is_form)


def _shown(text: str | None) -> str | None:
    """A text to show; None if there is none."""
    return None if text is None else one_line(text, MAX_TEXT)


def _require(row: Any, names: set[str]) -> None:
    if not isinstance(row, dict) or set(row) != names:
        raise ValueError(f"expected an object with {sorted(names)}")


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
