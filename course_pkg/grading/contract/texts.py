"""A verdict in short texts: what is recorded of a question, and what is said of each lost mark.

The values of a verdict stay with whoever judged; these texts are what the recorder keeps, and what
every report shows: in the notebook, in the gradebook and on the student's page.

Chapter: appendix/for-instructors.
"""

import unicodedata
from dataclasses import dataclass

from .judge import UNANSWERED

# Characters that change how the text around them is shown: controls, halves of a pair, and the
# marks that turn the direction of writing.
_TURNING = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)), "\u200e", "\u200f"}


@dataclass(frozen=True)
class FailureRecord:
    """A `Failure` in short texts; None for what is not to be shown, or is not there."""

    inputs: str | None
    expected: str | None
    given: str | None
    reason: str
    misconception: str | None = None


@dataclass(frozen=True)
class PropertyRecord:
    """What one property earned, in short texts. failure is None when it was earned."""

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
    """What one question earned, in short texts."""

    question: str
    properties: tuple[PropertyRecord, ...]

    @property
    def points(self) -> int:
        """The points of the question."""
        return sum(p.points for p in self.properties)

    @property
    def earned(self) -> int:
        """The points earned: a whole number from 0 to `points`."""
        return sum(p.earned for p in self.properties)


def one_line(text: str, limit: int = 500) -> str:
    """A text from outside as one line: controls and marks that hide or turn text are replaced.

    limit: characters that are kept.

    >>> one_line("two\\nlines\\x1b[2J")
    'two lines�[2J'
    """
    text = text[: limit + 1]
    shown = "".join(
        " " if c in "\n\r\t" else "\ufffd" if c in _TURNING or _hidden(c) else c for c in text
    )
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _hidden(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def title(question_id: str, record: QuestionRecord) -> str:
    """The first line of a report.

    >>> title("lora-math/counts", QuestionRecord("counts", ()))
    'lora-math/counts: 0 of 0 points'
    """
    return f"{question_id}: {record.earned} of {record.points} point{'s' * (record.points != 1)}"


def details(p: PropertyRecord) -> list[tuple[str, str]]:
    """What a property that was lost has to say: labels and texts, in the order to show them.

    >>> details(PropertyRecord("n", "says", "hint", 1, FailureRecord(None, None, None, UNANSWERED)))
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
        ("it looks as if", failure.misconception),
        ("hint", p.hint),
    ]
    return [(label, text) for label, text in rows if text]
