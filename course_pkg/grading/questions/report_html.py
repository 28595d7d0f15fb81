"""The report on a question as HTML: in a notebook, and on the pages of results.

It has no script, loads nothing, and has styles for light and dark. It is put together here, without
Jinja, so that it also shows in a browser's Python, which has the standard library alone.
"""

import functools
from collections.abc import Iterable
from html import escape
from pathlib import Path

from course_pkg.grading.questions.display import LINES, NO_TEX, one_line
from course_pkg.grading.questions.question_record import (
    CODE,
    Mistake,
    PropertyRecord,
    QuestionRecord,
    following,
    mistakes_of,
    points_text,
    title,
)

TEMPLATES = Path(__file__).parents[2] / "data" / "grading"
METER = (
    '<svg class="meter" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
    '<rect class="all" width="100" height="6"/><rect class="got" width="{share}" height="6"/></svg>'
)
DIAGNOSIS = 1200  # characters that are shown
DETAIL = 1000


def report_html(
    name: str,
    record: QuestionRecord,
    mistakes: Iterable[Mistake] | None = None,
    note: str = "",
    printed: str = "",
    *,
    on_page: bool = False,
) -> str:
    """The report on a question as HTML, with its style unless it is for a page that has it.

    Args:
        mistakes: by default, `mistakes_of(record)`, each mistake once, first.
        printed: left out if the notebook shows all of it.
        on_page: its name is a heading.
    """
    tag = "h2" if on_page else "p"
    label = _line(title(name, record))
    share = round(100 * record.earned / record.points, 2) if record.points else 0
    points = f"{record.earned:g} of {points_text(record.points)}"
    heading = f'<{tag}>{_line(name)}</{tag}> <p class="points">{points}</p>'
    parts = [
        f'<div class="course-report {NO_TEX}" role="group" aria-label="{label}">',
        "" if on_page else f"<style>{report_style()}</style>",
        f'<div class="title">{heading}</div>',
        METER.format(share=share),
        _remark(note),
        *map(_one_mistake, mistakes_of(record) if mistakes is None else mistakes),
        _passed(record),
        _printed(printed),
        "</div>",
    ]
    return "\n".join(part for part in parts if part)


@functools.cache
def report_style() -> str:
    """The style of reports, and the colors that they share with the pages."""
    return (TEMPLATES / "report.css").read_text("utf-8")


def _one_mistake(mistake: Mistake) -> str:
    """One mistake: the properties that it costs, what it is, and a case."""
    lost = len(mistake.lost)
    costs = ""
    if mistake.details and lost > 1:
        costs = f"One mistake costs {'both' if lost == 2 else 'all of them'}. "
    parts = [
        '<div class="finding">',
        *(_property(p, "✗", "lost") for p in mistake.lost),
        f'<p class="diagnosis">{costs}{_line(mistake.diagnosis, DIAGNOSIS)}</p>',
    ]
    if mistake.details:
        parts += ['<dl class="rows">', *(_row(*detail) for detail in mistake.details), "</dl>"]
    return "\n".join([*parts, "</div>"])


def _row(label: str, text: str) -> str:
    kind = ' class="code"' if label in CODE else ""
    return f"<dt>{escape(label)}</dt><dd{kind}>{_line(text, DETAIL)}</dd>"


def _passed(record: QuestionRecord) -> str:
    """The properties that were earned, and whether a number follows from earlier ones."""
    passed = [p for p in record.properties if p.failure is None]
    if not passed:
        return ""
    parts = ['<div class="passed">', *(_property(p, "✓", "earned") for p in passed)]
    return "\n".join([*parts, f"{_remark(following(record))}</div>"])


def _property(p: PropertyRecord, sign: str, word: str) -> str:
    shown = f'<span aria-hidden="true">{sign}</span><span class="unseen">{word}: </span>'
    return (
        f'<p class="property"><span class="sign">{shown}</span>'
        f'<span class="says">{_line(p.says)}</span> '
        f'<span class="points">{p.earned:g}/{p.points:g}</span></p>'
    )


def _remark(text: str | None) -> str:
    return f'<p class="remark">{_line(text)}</p>' if text else ""


def _printed(text: str) -> str:
    """What an answer printed, folded, if it is more than the notebook shows."""
    lines = len(text.splitlines())
    if lines <= LINES:
        return ""
    summary = f"<summary>what your answer printed: {lines} lines</summary>"
    return f"<details>{summary}<pre>{escape(text)}</pre></details>"


def _line(text: str, *limit: int) -> str:
    return escape(one_line(text, *limit))
