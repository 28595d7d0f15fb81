"""The HTML pages in `results`: one for each student, and the index of the class.

Each page is one file without scripts or external resources, and its Content-Security-Policy
forbids both. Jinja escapes every text.

Chapter: appendix/for-instructors.
"""

import base64
import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contract.display import one_line
from ..contract.stored import details
from ..results.records import Record
from ..results.score_statistics import Statistics
from ..results.states import State
from ..results.store import file_stem

if TYPE_CHECKING:
    from jinja2 import Environment

    from .row import Row

TEMPLATES = Path(__file__).parents[2] / "data" / "grading"
GENERATOR = '<meta name="generator" content="course grade">'
BINS = 12
WIDTH, HEIGHT, FLOOR = 600, 105, 125  # of the histogram's area, and its baseline


@dataclass(frozen=True)
class Bin:
    """One bar of the histogram, in the drawing's units."""

    label: str
    count: int
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """The center of the bar, for the labels."""
        return self.x + self.width / 2


def student(row: "Row") -> str:
    """The page of a student who has a record: the score, and the reason for every lost point."""
    record = row.record
    title = f"{record.assignment}: {one_line(record.student)}"
    questions = () if row.waits else record.questions  # nothing was judged, so nothing is lost
    return _render(
        "student",
        title=title,
        row=row,
        record=record,
        questions=questions,
        unsafe=is_unsafe(record),
    )


def index(assignment: str, rows: Sequence["Row"], stats: Statistics | None) -> str:
    """The index of the class: statistics, questions, students."""
    records = [row.record for row in rows if row.record is not None]
    scores = [
        row.score
        for row in rows
        if row.record and row.record.state != State.REFUSED and row.score is not None
    ]  # as in the statistics
    return _render(
        "index",
        title=f"{assignment}: results",
        assignment=assignment,
        rows=rows,
        submissions=sum(row.state != "no-submission" for row in rows),
        to_mark=sum(bool(row.points and row.points.to_mark and not row.waits) for row in rows),
        waiting=sum(row.waits for row in rows),
        stats=stats,
        bins=histogram(scores, stats.most) if stats else [],
        unsafe=sum(map(is_unsafe, records)),
        unprotected="; ".join(sorted({r.unprotected for r in records} - {""})),
    )


def histogram(scores: Sequence[float], most: float) -> list[Bin]:
    """Bars over the scores from 0 to `most`, each for the same whole number of points.

    >>> [(b.label, b.count) for b in histogram([0, 1, 24], 24)][::11]
    [('0–1', 2), ('22–24', 1)]
    """
    step = max(1, math.ceil(most / BINS))
    starts = list(range(0, max(1, int(most)), step))
    counts = [0] * len(starts)
    for score in scores:
        counts[min(int(score // step), len(starts) - 1)] += 1
    tallest, room = max(counts) or 1, WIDTH / len(starts)
    bars = []
    for at, (start, count) in enumerate(zip(starts, counts, strict=True)):
        end = int(most) if at == len(starts) - 1 else start + step - 1
        height = round(HEIGHT * count / tallest, 1)
        label = str(start) if end == start else f"{start}–{end}"
        x, width = round(at * room + 2, 1), round(room - 4, 1)
        bars.append(Bin(label, count, x, round(FLOOR - height, 1), width, height))
    return bars


def is_unsafe(record: Record) -> bool:
    """Whether a submission was graded without a sandbox."""
    return record.sandbox.startswith("NONE")


def is_generated(path: Path) -> bool:
    """Whether a file is a page that the grader wrote."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return GENERATOR in file.read(2_000)


def _render(name: str, **values: Any) -> str:
    return _environment().get_template(f"{name}.html.j2").render(**values)


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (TEMPLATES / "style.css").read_text("utf-8")
    digest = hashlib.sha256(style.encode()).digest()
    environment.globals |= {
        "style": Markup(style),
        "style_hash": base64.b64encode(digest).decode(),
        "details": details,
        "file": file_stem,
    }
    environment.filters |= {"line": one_line, "points": "{:g}".format, "seconds": "{:.2f} s".format}
    return environment
