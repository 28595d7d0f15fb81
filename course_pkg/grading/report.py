"""What a student sees: `Score`, a number that shows a table, and `Recorded`.

Everything that came from an answer is shortened and escaped before it is shown.
"""

import html
from typing import Any

from .judge import UNANSWERED, PropertyResult, QuestionResult
from .values import Array

MAX_SHOWN = 500


def shorten(value: Any, limit: int = MAX_SHOWN) -> str:
    """A value as short text; in a dict, what is short comes first and arrays by their shape.

    Chapter: exercises.

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

    Chapter: exercises.

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
        head = f"<table class='course-report'><caption><b>{title}</b></caption>"
        return f"{head}{''.join(rows)}</table>"


class Recorded:
    """What `check` returns under the grader: that the answer was taken, and nothing more.

    Chapter: exercises.
    """

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
        rows.insert(0, (f'smallest failing input, .case("{p.name}")', shorten(failure.inputs)))
    if failure.given is not None:
        rows.append(("given", shorten(failure.given)))
    if failure.given is not None and failure.expected is not None:
        rows.append(("expected", shorten(failure.expected)))
    if failure.misconception:
        rows.append(("it looks as if", failure.misconception))
    return [*rows, ("hint", p.hint)]
