"""The HTML pages in `results`: the one for each student, and what the class's page shares with it.

Each page is one file without external resources, and its Content-Security-Policy forbids them. It
allows one script, that of the class's page. Jinja escapes every text.
"""

import base64
import functools
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_pkg.common.fingerprints.reach import WHOLE, Sources
from course_pkg.grading.classroom.execution.grade_key import ROOT
from course_pkg.grading.classroom.gradebook.record import file_stem
from course_pkg.grading.questions.display import one_line
from course_pkg.grading.questions.question_record import program_points_text
from course_pkg.grading.questions.report_html import TEMPLATES, report_html, report_style

if TYPE_CHECKING:
    from jinja2 import Environment

    from course_pkg.grading.classroom.gradebook.class_rows import Row


GENERATOR = '<meta name="generator" content="course grade">'
FINGERPRINT_BYTES = 74
_FINGERPRINT = re.compile(rb"<!-- ([0-9a-f]{64}) -->\n")
BINS = 12
WIDTH = 600
HEIGHT = 105
FLOOR = 125  # of the histogram's area, and its baseline


@dataclass(frozen=True)
class Bin:
    """One bar of the histogram, in the drawing's units."""

    label: str
    count: int
    x: float
    y: float
    width: float
    height: float


def student(row: "Row", mark: str) -> str:
    """The page of a student who has a record: the score, and the reason for every lost point.

    Args:
        mark: from `fingerprint`; it is written at the end, so that an incomplete page has none.
    """
    record = row.record
    title = f"{record.assignment}: {one_line(record.student)}"
    questions = () if row.waits else record.questions  # nothing was judged, so nothing is lost
    page = render("student", title=title, row=row, record=record, questions=questions)
    return f"{page}\n<!-- {mark} -->\n"


def fingerprint(row: "Row") -> str:
    """SHA-256 of all that a student's page depends on, the package included."""
    return hashlib.sha256(f"{_templates_hash()} {row!r}".encode("utf-8", "replace")).hexdigest()


def fingerprint_in(path: Path) -> str:
    """The fingerprint at the end of a page; "" if there is no such page, or it is incomplete."""
    try:
        with open(path, "rb") as file:
            file.seek(-min(FINGERPRINT_BYTES, file.seek(0, 2)), 2)
            match = _FINGERPRINT.fullmatch(file.read())
    except OSError:
        return ""
    return match[1].decode() if match else ""


def histogram(scores: Sequence[float], most: float) -> list[Bin]:
    """Bars over the scores from 0 to `most`, each for the same whole number of points."""
    step = max(1, math.ceil(most / BINS))
    starts = list(range(0, max(1, int(most)), step))
    counts = [0] * len(starts)
    for score in scores:
        counts[min(int(score // step), len(starts) - 1)] += 1
    tallest = max(counts) or 1
    room = WIDTH / len(starts)
    bars = []
    for at, (start, count) in enumerate(zip(starts, counts, strict=True)):
        end = int(most) if at == len(starts) - 1 else start + step - 1
        height = round(HEIGHT * count / tallest, 1)
        label = str(start) if end == start else f"{start}–{end}"
        x = round(at * room + 2, 1)
        width = round(room - 4, 1)
        bars.append(Bin(label, count, x, round(FLOOR - height, 1), width, height))
    return bars


def _policy_hash(text: str) -> str:
    """How a Content-Security-Policy names a script or style in the page itself."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def is_generated(path: Path) -> bool:
    """Whether a file is a page that the grader wrote."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return GENERATOR in file.read(2_000)


def render(name: str, **values: Any) -> str:
    """A page of those templates; a page without a script needs no `script`."""
    return _environment().get_template(f"{name}.html.j2").render(**{"script": "", **values})


@functools.cache
def _templates_hash() -> str:
    sources = Sources(ROOT)
    files = [path.read_bytes() for path in sorted(TEMPLATES.iterdir()) if path.is_file()]
    code = str(sources.hashes(sources.reach((__name__, WHOLE)))).encode()
    return hashlib.sha256(code + b"".join(files)).hexdigest()


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {
        "style": Markup(report_style() + (TEMPLATES / "style.css").read_text("utf-8")),
        "policy_hash": _policy_hash,
        "report": lambda question: Markup(report_html(question.question, question, on_page=True)),
        "file": file_stem,
        "program_points_text": program_points_text,
    }
    made.filters |= {"line": one_line, "points": "{:g}".format, "seconds": "{:.2f} s".format}
    return made
