"""A report as HTML, with one look in notebooks and on the pages of results.

In a notebook it brings its style with it, for light and dark. It has no script, and loads nothing.

Chapter: appendix/for-instructors.
"""

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from .display import LINES, NO_TEX, one_line
from .stored import CODE, Finding, QuestionRecord, findings, following, points_text, title

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parents[2] / "data" / "grading"


def report_in_notebook(
    question_id: str,
    record: QuestionRecord,
    found: Iterable[Finding] | None = None,
    note: str = "",
    printed: str = "",
) -> str:
    """The report on a question, with its style.

    found: by default, `findings(record)`. note: what the reader should know first, or "".
    printed: what the answer printed; it is folded, and left out if the notebook shows all of it.
    """
    found = findings(record) if found is None else found
    if len(printed.splitlines()) <= LINES:
        printed = ""
    return _report(question_id, record, found, note, printed, "p", report_style())


def report_on_page(record: QuestionRecord) -> str:
    """The report on a question, for a page that has the style: its name is a heading."""
    return _report(record.question, record, findings(record), "", "", "h2", "")


@functools.cache
def report_style() -> str:
    """The style of reports, and the colors that they share with the pages."""
    return (TEMPLATES / "report.css").read_text("utf-8")


def environment() -> "Environment":
    """Jinja for the templates of reports and pages: it escapes every text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"line": one_line, "points": "{:g}".format}
    return made


@functools.cache
def _environment() -> "Environment":
    return environment()


def _report(
    name: str,
    record: QuestionRecord,
    found: Iterable[Finding],
    note: str,
    printed: str,
    tag: str,
    style: str,
) -> str:
    from markupsafe import Markup

    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            name=name,
            title=title(name, record),
            record=record,
            findings=list(found),
            passed=[p for p in record.properties if p.failure is None],
            following=following(record),
            note=note,
            printed=printed,
            tag=tag,
            style=Markup(style),
            share=round(100 * record.earned / record.points, 2) if record.points else 0,
            code=CODE,
            no_tex=NO_TEX,
            points_text=points_text,
        )
    )
