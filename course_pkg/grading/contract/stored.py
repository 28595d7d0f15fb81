"""A verdict as it is stored and shown: what each property earned, in short texts.

The values of a verdict stay in the process that judged. A `QuestionRecord` is what the grader
keeps, and what every report shows: in the notebook, in the gradebook and on the student's page.

Chapter: appendix/for-instructors.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from .display import html_table
from .questions import Question
from .recognition import says
from .verdict import UNANSWERED


@dataclass(frozen=True)
class FailureRecord:
    """A `Failure` in short texts; None for what is not to be shown, or does not exist.

    explanations: what the recognized wrong answers tell the student. note: about the name in the
    notebook, or "".
    """

    reason: str
    inputs: str | None = None
    expected: str | None = None
    given: str | None = None
    explanations: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class PropertyRecord:
    """What one property earned. failure is None if it was earned."""

    name: str
    says: str
    hint: str
    points: int
    failure: FailureRecord | None

    @property
    def earned(self) -> int:
        """All of the property's points, or none."""
        return self.points if self.failure is None else 0


@dataclass(frozen=True)
class QuestionRecord:
    """What one question earned, property by property.

    late_s: if the last answer came too late to count, the seconds that it took; else None.
    """

    question: str
    properties: tuple[PropertyRecord, ...]
    late_s: float | None = None

    @property
    def points(self) -> int:
        """The points of the question."""
        return sum(p.points for p in self.properties)

    @property
    def earned(self) -> int:
        """The points earned: a whole number from 0 to `points`."""
        return sum(p.earned for p in self.properties)


def question_record(
    question: Question,
    failures: Mapping[str, FailureRecord | None],
    late_s: float | None = None,
) -> QuestionRecord:
    """The record of a question. failures: by property. late_s: as in the verdict."""
    properties = (
        PropertyRecord(p.name, p.says, p.hint, p.points, failures[p.name])
        for p in question.properties
    )
    return QuestionRecord(question.name, tuple(properties), late_s)


def nothing_earned(questions: Mapping[str, Question]) -> tuple[QuestionRecord, ...]:
    """The questions of a submission that was not run: every property lost, as not answered.

    >>> nothing_earned({})
    ()
    """
    failure = FailureRecord(UNANSWERED)
    return tuple(
        question_record(q, dict.fromkeys((p.name for p in q.properties), failure))
        for q in questions.values()
    )


def explanations(question: Question, recognized: tuple[str, ...]) -> tuple[str, ...]:
    """What the recognized mistakes of those names tell the student."""
    return tuple(text for name, text in says(question).items() if name in recognized)


def notes(questions: Iterable[QuestionRecord]) -> tuple[str, ...]:
    """What the failures say about the name in the notebook, each once.

    >>> notes([])
    ()
    """
    failures = (p.failure for question in questions for p in question.properties)
    return tuple(dict.fromkeys(f.note for f in failures if f is not None and f.note))


def title(question_id: str, record: QuestionRecord) -> str:
    """The first line of a report.

    >>> title("lora-math/counts", QuestionRecord("counts", ()))
    'lora-math/counts: 0 of 0 points'
    """
    return f"{question_id}: {record.earned} of {record.points} point{'s' * (record.points != 1)}"


def details(p: PropertyRecord) -> list[tuple[str, str]]:
    """Why a property was lost: labels and texts, in the order to show them.

    >>> details(PropertyRecord("n", "says", "hint", 1, FailureRecord(UNANSWERED)))
    [('not answered yet', '')]
    """
    failure = p.failure
    if failure is None:
        return []
    if failure.reason == UNANSWERED:
        return [(UNANSWERED, "")]
    given = failure.given is not None
    rows = [
        ("smallest failing input", failure.inputs),
        ("what happened", failure.reason),
        ("given", failure.given),
        ("expected", failure.expected if given else None),
        ("your name", failure.note),
        ("it looks as if", ", or ".join(failure.explanations)),
        ("hint", p.hint),
    ]
    return [(label, text) for label, text in rows if text]


def record_table(
    heading: str,
    record: QuestionRecord,
    details: Callable[[PropertyRecord], list[tuple[str, str]]] = details,
) -> str:
    """A report as HTML. details: what is said below each property."""
    rows = (
        (p.failure is None, p.says, f"{p.earned}/{p.points}", details(p)) for p in record.properties
    )
    return html_table(heading, rows)
