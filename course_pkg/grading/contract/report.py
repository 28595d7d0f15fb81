"""What a student sees: `Score`, a number that shows a table, and `Recorded`.

Everything that came from an answer is shortened and escaped before it is shown. A verdict in
short texts is a `QuestionRecord`: one table shows those of the notebook and those of the grader.

Chapter: exercises.
"""

import html
from collections.abc import Iterable
from typing import Any

from .judge import Failure, QuestionResult
from .texts import FailureRecord, PropertyRecord, QuestionRecord, details, title
from .values import Array

MAX_SHOWN = 500
# Both names by which MathJax is told to leave a part of a page alone: what a student's code gave
# may hold dollar signs, and TeX can make links.
NO_TEX = "tex2jax_ignore mathjax_ignore"


def as_record(result: QuestionResult) -> QuestionRecord:
    """A verdict in short texts.

    >>> as_record(QuestionResult("counts", ())).points
    0
    """
    properties = (
        PropertyRecord(p.name, p.says, p.hint, p.points, p.failure and _failure(p.failure))
        for p in result.properties
    )
    return QuestionRecord(result.question, tuple(properties))


def _failure(failure: Failure) -> FailureRecord:
    inputs = shorten(failure.inputs) if failure.inputs else None
    shown = (None if v is None else shorten(v) for v in (failure.expected, failure.given))
    return FailureRecord(inputs, *shown, failure.reason, failure.misconception)


def html_table(heading: str, rows: Iterable[tuple[PropertyRecord, list[tuple[str, str]]]]) -> str:
    """A report as HTML: each property with its details; every text is escaped."""
    body = []
    for p, lines in rows:
        below = "".join(
            f"<div style='margin-left:1em'><b>{html.escape(label)}</b> {html.escape(text)}</div>"
            for label, text in lines
        )
        body.append(
            f"<tr><td style='vertical-align:top'>{_mark(p)}</td>"
            f"<td style='text-align:left'>{html.escape(p.says)}{below}</td>"
            f"<td style='vertical-align:top'>{p.earned}/{p.points}</td></tr>"
        )
    head = f"<table class='course-report {NO_TEX}'><caption><b>{html.escape(heading)}</b></caption>"
    return f"{head}{''.join(body)}</table>"


def shorten(value: Any, limit: int = MAX_SHOWN) -> str:
    """A value as short text; in a dict, what is short comes first and arrays by their shape.

    >>> shorten({"x": Array("float32", (8, 8), bytes(256)), "alpha": 2.0})
    '{alpha: 2.0, x: float32 (8, 8)}'
    """
    match value:
        case Array():
            text = _array(value)
        case dict():
            pairs = sorted(value.items(), key=lambda pair: isinstance(pair[1], Array | list | dict))
            text = "{" + ", ".join(f"{k}: {_inner(v)}" for k, v in pairs) + "}"
        case list() | tuple():
            more = ", …" if len(value) > 12 else ""
            text = "[" + ", ".join(map(_inner, value[:12])) + more + "]"
        case float():
            text = f"{value:.10g}" if value % 1 else repr(value)
        case _:
            text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _inner(value: Any) -> str:
    if isinstance(value, Array) and value.numpy().size > 6:
        return f"{value.dtype} {value.shape}"
    return shorten(value, 200)


def _array(value: Array) -> str:
    numbers = value.numpy().ravel()[:6].tolist()
    shown = ", ".join(f"{n:.5g}" if isinstance(n, float) and n else str(n) for n in numbers)
    more = ", …" if value.numpy().size > 6 else ""
    return f"{value.dtype} {value.shape} [{shown}{more}]"


class Score(float):
    """The points of one question: a float, so that nbgrader reads it, with a report to look at.

    >>> from course_pkg.grading.contract.judge import QuestionResult
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
        return title(self.question_id, as_record(self.result))

    @property
    def _rows(self) -> list[tuple[PropertyRecord, list[tuple[str, str]]]]:
        rows = []
        for p in as_record(self.result).properties:
            label = {"smallest failing input": f'smallest failing input, .case("{p.name}")'}
            rows.append((p, [(label.get(name, name), text) for name, text in details(p)]))
        return rows

    @property
    def report(self) -> str:
        """The report as plain text."""
        lines = [self._title]
        for p, below in self._rows:
            lines.append(f"  {_mark(p)} {p.says} ({p.earned}/{p.points})")
            lines += ["      " + ": ".join(filter(None, row)) for row in below]
        return "\n".join(lines)

    def case(self, name: str) -> Any:
        """The smallest input on which the property called `name` failed, arrays as numpy's.

        To try your answer on it. Raises KeyError, with the names that there are, for a property
        that was earned or does not exist.
        """
        failed = {p.name: p.failure for p in self.result.properties if p.failure is not None}
        if name not in failed:
            raise KeyError(f"no property {name!r} failed here; these did: {', '.join(failed)}")
        return _as_numpy(failed[name].inputs)

    def _repr_html_(self) -> str:
        return html_table(self._title, self._rows)


class Recorded:
    """What `check` returns under the grader: that the answer was taken, and nothing more."""

    def __init__(self, question_id: str) -> None:
        self.question_id = question_id

    def __repr__(self) -> str:
        return f"{self.question_id}: recorded"


def _as_numpy(value: Any) -> Any:
    match value:
        case Array():
            return value.numpy()
        case dict():
            return {key: _as_numpy(item) for key, item in value.items()}
        case list() | tuple():
            return [_as_numpy(item) for item in value]
    return value


def _mark(p: PropertyRecord) -> str:
    return "✓" if p.failure is None else "✗"
