"""What a student's cell shows: `Score`, a number that shows a table, and `Recorded`.

Chapter: exercises.
"""

import html
from typing import Any

from .calling import with_tensors
from .display import folded, mark, shorten
from .stored import (
    FailureRecord,
    PropertyRecord,
    QuestionRecord,
    details,
    explanations,
    question_record,
    record_table,
    title,
)
from .verdict import Failure, Verdict


def as_record(verdict: Verdict) -> QuestionRecord:
    """A verdict in short texts."""
    question = verdict.question
    failures = {
        name: failure
        and FailureRecord(
            **failure_texts(failure),
            explanations=explanations(question, failure.recognized),
        )
        for name, failure in verdict.failures.items()
    }
    return question_record(question, failures, verdict.late_s)


def failure_texts(failure: Failure) -> dict[str, str | None]:
    """The reason, inputs, expected and given of a failure as short texts.

    >>> failure_texts(Failure("the number differs", {"n": 1}, 2, 3))["inputs"]
    '{n: 1}'
    """
    values = {"inputs": failure.inputs, "expected": failure.expected, "given": failure.given}
    shown = {name: None if v is None else shorten(v) for name, v in values.items()}
    return {"reason": failure.reason[:500], "note": failure.note[:500], **shown}


class Score(float):
    """The points of one question: a float, so that nbgrader reads it, with a report to look at.

    printed: what the answer printed. note: what the reader should know first, or "".
    """

    question_id: str
    verdict: Verdict
    printed: str
    note: str

    def __new__(
        cls, question_id: str, verdict: Verdict, printed: str = "", note: str = ""
    ) -> "Score":
        """The score of a verdict: whole points from 0 to the question's maximum."""
        score = super().__new__(cls, verdict.earned)
        score.question_id, score.verdict = question_id, verdict
        score.printed, score.note = printed, note
        return score

    @property
    def report(self) -> str:
        """The report as plain text."""
        record = as_record(self.verdict)
        lines = [title(self.question_id, record), *[f"  note: {self.note}"][: bool(self.note)]]
        for p in record.properties:
            sign = mark(p.failure is None)
            lines.append(f"  {sign} {p.says} ({p.earned}/{p.points})")
            lines += ["      " + ": ".join(filter(None, row)) for row in _details(p)]
        return "\n".join(lines)

    def case(self, name: str) -> Any:
        """The smallest input on which the property called `name` failed, arrays as tensors.

        To try your answer on it. Raises KeyError, with the names that there are, for a property
        that was earned or does not exist.
        """
        failed = {key: f for key, f in self.verdict.failures.items() if f and f.inputs}
        if name not in failed:
            raise KeyError(f"no property {name!r} failed here; these did: {', '.join(failed)}")
        return with_tensors(failed[name].inputs)

    def _repr_html_(self) -> str:
        record = as_record(self.verdict)
        note = f"<p><b>{html.escape(self.note)}</b></p>" if self.note else ""
        table = record_table(title(self.question_id, record), record, _details)
        return f"{note}{table}{folded(self.printed)}"


class Recorded:
    """What `check` returns under the grader: that the answer was recorded, and nothing more."""

    def __init__(self, question_id: str) -> None:
        self.question_id = question_id

    def __repr__(self) -> str:
        return f"{self.question_id}: recorded"


def _details(p: PropertyRecord) -> list[tuple[str, str]]:
    label = "smallest failing input"
    return [
        (f'{label}, .case("{p.name}")' if name == label else name, text)
        for name, text in details(p)
    ]
