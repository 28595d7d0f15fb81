"""The report on a class: `results/<assignment>/` with grades.csv, an index and students' pages.

Texts from students are inert in it: never a formula in the table, never markup on a page.

Chapter: appendix/for-instructors.
"""

import csv
import io
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from course_pkg.files import write_atomically

from ..contract.display import one_line
from ..results.records import without_words
from ..results.score_statistics import score_statistics
from ..results.store import file_stem
from ..submissions.tables import inert
from . import class_page, pages
from .row import Row, points_by_student

COLUMNS = ("student", "first_name", "last_name", "assignment", "state",
           "automatic", "by_hand", "late_penalty", "score", "max_score", "to_mark",
           "submitted", "late_hours", "reason", "start_s", "run_s", "write_s",
           "limits", "sandbox", "gpu")  # fmt: skip
MODE = 0o644


def folder(assignment: str) -> Path:
    """The folder of an assignment's results, in the course's.

    >>> folder("lora-math").as_posix()
    'results/lora-math'
    """
    return Path("results") / assignment


def write(course: Path, assignment: str, rows: Iterable[Row]) -> list[Row]:
    """Write grades.csv, index.html and a page for each record; remove the pages of other students.

    rows: of the whole class, from `class_rows`. A student's page that would not change is not
    written again. Returns the rows, their records as `without_words` gives them.
    """
    into = course / folder(assignment)
    into.mkdir(parents=True, exist_ok=True)
    kept, names = [], {"index.html"}
    for row in rows:
        if row.record is not None:
            path = into / f"{file_stem(row.student)}.html"
            names.add(path.name)
            if pages.fingerprint_in(path) != (fingerprint := pages.fingerprint(row)):
                write_atomically(path, pages.student(row, fingerprint), MODE)
            row = replace(row, record=without_words(row.record))
        kept.append(row)
    write_atomically(into / "grades.csv", grades_csv(assignment, kept), MODE)
    records = [row.record for row in kept if row.record is not None]
    stats = score_statistics(records, points_by_student(kept))
    write_atomically(into / "index.html", class_page.index(assignment, kept, stats), MODE)
    for path in into.glob("*.html"):
        if path.name not in names and path.is_file() and pages.is_generated(path):
            path.unlink()
    return kept


def grades_csv(assignment: str, rows: Iterable[Row]) -> str:
    """The class as CSV, texts quoted and inert. Points are empty for a student without any.

    score = automatic + by_hand - late_penalty, at least 0, as in nbgrader's own export.

    >>> grades_csv("lora-math", []).startswith('"student","first_name","last_name","assignment"')
    True
    """
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        names = (row.student, row.person.first_name, row.person.last_name, assignment, row.state)
        texts, numbers, late = [_text(text) for text in names], [""] * 6, ["", ""]
        if row.score is not None and (p := row.points):
            found = (p.automatic, p.by_hand, p.late_penalty, p.score, p.max_score, p.to_mark)
            numbers = [int(n) if float(n).is_integer() else round(n, 4) for n in found]
        if row.points and row.points.submitted and not row.waits:
            late = [row.points.submitted.isoformat(), round(row.points.late_s / 3600, 2)]
        last: list[object] = [""] * 6
        if r := row.record:
            seconds = [round(s, 3) for s in (r.start_s, r.run_s, r.write_s)]
            last = [*seconds, _text(r.limits), _text(r.sandbox), _text(r.gpu)]
        writer.writerow([*texts, *numbers, *late, _text(row.reason), *last])
    return out.getvalue()


def late_note(course: Path, assignment: str) -> str:
    """Who is late by the report's table, and by how much, 10 by name; "" if nobody is."""
    with open(course / folder(assignment) / "grades.csv", newline="", encoding="utf-8") as file:
        late = [r for r in csv.DictReader(file) if r["late_hours"] not in ("", "0", "0.0")]
    named = [f"{row['student']} ({float(row['late_hours']):g} h)" for row in late[:10]]
    others = [f"and {len(late) - 10} more, see grades.csv"] if len(late) > 10 else []
    return ", ".join(named + others)


def waiting_points(course: Path, assignment: str) -> float:
    """By the report's table, the points that wait for a person, in the submission with the most."""
    with open(course / folder(assignment) / "grades.csv", newline="", encoding="utf-8") as file:
        return max((float(row["to_mark"] or 0) for row in csv.DictReader(file)), default=0)


def _text(text: str) -> str:
    """A text as a cell: one line, and no formula."""
    return inert(one_line(text))
