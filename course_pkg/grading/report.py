"""What a student sees: `Score`, a number that shows a table, and `Recorded`.

Everything that came from an answer is shortened and escaped before it is shown.
"""

import html
from typing import Any

from .judge import UNANSWERED, PropertyResult, QuestionResult
from .values import Array

MAX_SHOWN = 300


def shorten(value: Any, limit: int = MAX_SHOWN) -> str:
    """A value as short text: arrays by their first numbers and their shape.

    >>> shorten({"rank": 2, "x": Array("float32", (1,), bytes(4))})
    '{rank: 2, x: float32 (1,) [0.0]}'
    """
    match value:
        case Array():
            numbers = value.numpy().ravel()[:6].tolist()
            shown = ", ".join(f"{n:.5g}" if isinstance(n, float) and n else str(n) for n in numbers)
            more = ", …" if value.numpy().size > 6 else ""
            text = f"{value.dtype} {value.shape} [{shown}{more}]"
        case dict():
            text = "{" + ", ".join(f"{k}: {shorten(v, 120)}" for k, v in value.items()) + "}"
        case list() | tuple():
            text = "[" + ", ".join(shorten(v, 120) for v in value[:8]) + "]"
        case _:
            text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


class Score(float):
    """The points of one question: a float, so that nbgrader reads it, with a report to look at.

    >>> from course_pkg.grading.judge import QuestionResult
    >>> Score("demo/q", QuestionResult("q", ()))
    0.0
    """

    result: QuestionResult
    question_id: str

    def __new__(cls, question_id: str, result: QuestionResult) -> "Score":
        """The score of `result`, whole points from 0 to the question's maximum."""
        score = super().__new__(cls, result.earned)
        score.result, score.question_id = result, question_id
        return score

    @property
    def _title(self) -> str:
        most = self.result.max_points
        return f"{self.question_id}: {self.result.earned} of {most} point{'s' * (most != 1)}"

    @property
    def report(self) -> str:
        """The report as plain text."""
        lines = [self._title]
        for p in self.result.properties:
            lines.append(f"  {_mark(p)} {p.says} ({p.earned}/{p.points})")
            lines += [f"      {label}: {text}" for label, text in _details(p)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for p in self.result.properties:
            details = "".join(
                f"<div style='margin-left:1em'><b>{label}</b> {html.escape(text)}</div>"
                for label, text in _details(p)
            )
            rows.append(
                f"<tr><td style='vertical-align:top'>{_mark(p)}</td>"
                f"<td style='text-align:left'>{html.escape(p.says)}{details}</td>"
                f"<td style='vertical-align:top'>{p.earned}/{p.points}</td></tr>"
            )
        title = html.escape(self._title)
        return f"<table><caption><b>{title}</b></caption>{''.join(rows)}</table>"


class Recorded:
    """What `check` returns under the grader: that the answer was taken, and nothing more."""

    def __init__(self, question_id: str) -> None:
        self.question_id = question_id

    def __repr__(self) -> str:
        return f"{self.question_id}: recorded"


def _mark(p: PropertyResult) -> str:
    return "✓" if p.failure is None else "✗"


def _details(p: PropertyResult) -> list[tuple[str, str]]:
    failure = p.failure
    if failure is None:
        return []
    if failure.reason == UNANSWERED:
        return [("not answered yet", "")]
    rows = [("what happened", failure.reason)]
    if failure.inputs:
        rows.insert(0, ("smallest failing input", shorten(failure.inputs)))
    if failure.given is not None:
        rows.append(("given", shorten(failure.given)))
    if failure.given is not None and failure.expected is not None:
        rows.append(("expected", shorten(failure.expected)))
    if failure.misconception:
        rows.append(("it looks as if", failure.misconception))
    return [*rows, ("hint", p.hint)]
