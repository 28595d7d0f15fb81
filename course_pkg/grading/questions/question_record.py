"""What each property of a question earned, in short texts, and the mistakes behind lost points.

A `QuestionRecord` is what the grader keeps, and what every report shows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from course_pkg.grading.questions.question import Question
from course_pkg.grading.questions.verdict import UNANSWERED, says

SMALLEST = "smallest failing input"
YOUR_CASE = "your case"
GIVEN = "given"
EXPECTED = "expected"
TO_TRY = "run this to try it"
CODE = frozenset({SMALLEST, YOUR_CASE, GIVEN, EXPECTED, TO_TRY})  # labels of values and code
OBVIOUS = ("the number differs", "the value differs")  # nothing that given and expected don't show


@dataclass(frozen=True)
class FailureRecord:
    """A `Failure` in short texts, with what recognized mistakes tell."""

    reason: str
    inputs: str | None = None
    expected: str | None = None
    given: str | None = None
    explanations: tuple[str, ...] = ()
    note: str = ""
    is_form: bool = False


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
    """What one question earned, property by property; late_s and follows as in the verdict.

    Attributes:
        by_hand: whether the answer is a number worked by hand, on a case that the student knows.
        unjudged: why there was nothing to judge, such as an error that ended the cell; or "".
    """

    question: str
    properties: tuple[PropertyRecord, ...]
    late_s: float | None = None
    by_hand: bool = False
    follows: tuple[str, ...] = ()
    unjudged: str = ""

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
    follows: tuple[str, ...] = (),
) -> QuestionRecord:
    """The record of a question. failures: by property."""
    properties = tuple(
        PropertyRecord(p.name, p.says, p.hint, p.points, failures[p.name])
        for p in question.properties
    )
    return QuestionRecord(question.name, properties, late_s, bool(question.variant), follows)


def nothing_earned(questions: Mapping[str, Question]) -> tuple[QuestionRecord, ...]:
    """The questions of a submission that was not run: every property lost, as not answered."""
    failure = FailureRecord(UNANSWERED)
    return tuple(
        question_record(q, dict.fromkeys((p.name for p in q.properties), failure))
        for q in questions.values()
    )


def explanations(question: Question, recognized: tuple[str, ...]) -> tuple[str, ...]:
    """What the recognized mistakes of those names tell the student."""
    return tuple(text for name, text in says(question).items() if name in recognized)


def notes(questions: Iterable[QuestionRecord]) -> tuple[str, ...]:
    """What the failures say about the name in the notebook, each once."""
    failures = (p.failure for question in questions for p in question.properties)
    return tuple(dict.fromkeys(f.note for f in failures if f is not None and f.note))


def unjudged(questions: Iterable[QuestionRecord]) -> tuple[str, ...]:
    """For each question that had nothing to judge, why."""
    return tuple(f"{q.question}: {q.unjudged}" for q in questions if q.unjudged)


def title(question_id: str, record: QuestionRecord) -> str:
    """The first line of a report, such as "lora-math/counts: 2 of 3 points"."""
    return f"{question_id}: {record.earned:g} of {points_text(record.points)}"


def following(record: QuestionRecord) -> str:
    """Says that an answer follows correctly from the student's own values; or ""."""
    if not record.follows:
        return ""
    return f"follows correctly from your value in {' and '.join(record.follows)}"


def points_text(points: float) -> str:
    """A number of points with its noun: "1 point", "2.5 points"."""
    return f"{points:g} point" if points == 1 else f"{points:g} points"


def program_points_text(points: float, waiting: float) -> str:
    """The points that the program gives, and those that still wait for a person to give them."""
    text = f"{points_text(points)} by program"
    verb = "waits" if waiting == 1 else "wait"
    return f"{text}; {waiting:g} more {verb} for a person" if waiting else text


@dataclass(frozen=True)
class Mistake:
    """One mistake: the properties that it costs, one sentence, and labeled texts in order."""

    lost: tuple[PropertyRecord, ...]
    diagnosis: str
    details: tuple[tuple[str, str], ...] = ()


def mistakes_of(record: QuestionRecord) -> list[Mistake]:
    """The mistakes behind the lost points, each once, with all properties that it costs."""
    if record.unjudged:
        return [Mistake(record.properties, _sentence(record.unjudged))]
    groups: dict[object, list[PropertyRecord]] = {}
    for p in record.properties:
        if p.failure is not None:
            groups.setdefault(_cause(p), []).append(p)
    return [_mistake(tuple(lost), record.by_hand) for lost in groups.values()]


def _cause(p: PropertyRecord) -> object:
    """What is equal for two properties that one mistake costs."""
    if p.failure.explanations:
        return p.failure.explanations, p.failure.note
    if p.failure.given in (None, repr(None)):  # an error, or no value: not one that differs
        return p.failure.reason, p.failure.note
    return p.name


def _mistake(lost: tuple[PropertyRecord, ...], by_hand: bool) -> Mistake:
    """The mistake that costs these properties; the case of the first shows it."""
    failure = lost[0].failure
    if failure.reason == UNANSWERED:
        return Mistake(lost, _sentence(UNANSWERED))
    diagnosis = _sentence(failure.reason)
    if failure.explanations:
        diagnosis = f"It looks as if {', or as if '.join(failure.explanations)}."
    name = ("your name", failure.note)
    given = (GIVEN, failure.given)
    if by_hand:  # the case is known; what was given is news
        rows = [name, given, (YOUR_CASE, failure.inputs)]
    else:
        expected = failure.expected if failure.given is not None else None
        rows = [name, (SMALLEST, failure.inputs), given, (EXPECTED, expected)]
    if failure.explanations and failure.reason not in OBVIOUS:
        rows.append(("what happened" if failure.given is None else "what differs", failure.reason))
    # A hint could contradict the diagnosis, or have nothing to do with it.
    if not failure.explanations and len(lost) == 1 and not failure.is_form:
        rows.append(("hint", lost[0].hint))
    return Mistake(lost, diagnosis, tuple((label, text) for label, text in rows if text))


def _sentence(text: str) -> str:
    """A reason as a sentence; one that starts with a formula, such as "n = 1", is kept."""
    first, _, rest = text.partition(" ")
    if first.isalpha() and first.islower() and not rest.startswith("="):
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."
