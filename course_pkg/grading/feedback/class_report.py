"""The report on a class: `results/<assignment>/` with grades.csv, an index and students' pages.

Texts from students are inert in it: never a formula in the table, never markup on a page.

Chapter: appendix/for-instructors.
"""

import csv
import io
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from course_pkg.files import write_atomically

from ..contract.display import one_line
from ..results.records import Record
from ..results.score_statistics import score_statistics
from ..results.store import Store, file_stem
from . import pages

COLUMNS = ("student", "assignment", "state", "score", "max_score", "to_mark", "reason",
           "start_s", "run_s", "write_s", "limits", "sandbox")  # fmt: skip
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet computes a field that starts so
MODE = 0o644


def current(
    store: Store, assignment: str, present: Collection[str], fresh: Iterable[Record]
) -> list[Record]:
    """The latest record of every student in `present`: the fresh one, or else the stored one."""
    latest = {record.student: record for record in fresh}
    for student in set(present) - set(latest):
        if (record := store.load(assignment, student)) is not None:
            latest[student] = record
    return [latest[student] for student in sorted(present) if student in latest]


def folder(assignment: str) -> Path:
    """The folder of an assignment's results, in the course's.

    >>> folder("lora-math").as_posix()
    'results/lora-math'
    """
    return Path("results") / assignment


def write(
    course: Path, assignment: str, records: Iterable[Record], to_mark: Mapping[str, float]
) -> Path:
    """Write grades.csv, index.html and a page for each record; remove the pages of other students.

    to_mark: points to be marked by hand, by student. Returns the folder.
    """
    records = sorted(records, key=lambda record: record.student)
    into = course / folder(assignment)
    into.mkdir(parents=True, exist_ok=True)
    write_atomically(into / "grades.csv", grades_csv(records, to_mark), MODE)
    made = {"index.html": pages.index(assignment, records, score_statistics(records), to_mark)}
    for record in records:
        page = pages.student(record, to_mark.get(record.student, 0.0))
        made[f"{file_stem(record.student)}.html"] = page
    for name, page in made.items():
        write_atomically(into / name, page, MODE)
    for path in into.glob("*.html"):
        if path.name not in made and path.is_file() and pages.is_generated(path):
            path.unlink()
    return into


def grades_csv(records: Iterable[Record], to_mark: Mapping[str, float]) -> str:
    """The class as CSV, texts quoted and inert. The score is empty if the state has none.

    >>> grades_csv([], {}).startswith('"student","assignment","state","score"')
    True
    """
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(COLUMNS)
    for r in records:
        texts = [inert(r.student), inert(r.assignment), inert(str(r.state))]
        numbers = [r.score if r.state.has_score else "", r.max_score, to_mark.get(r.student, 0.0)]
        seconds = [round(s, 3) for s in (r.start_s, r.run_s, r.write_s)]
        last = [inert(r.limits), inert(r.sandbox)]
        writer.writerow([*texts, *numbers, inert(r.reason), *seconds, *last])
    return out.getvalue()


def inert(text: str) -> str:
    """The text, with an apostrophe before it if a spreadsheet would take it for a formula.

    >>> inert("=1+1"), inert("ada")
    ("'=1+1", 'ada')
    """
    shown = one_line(text)
    return f"'{shown}" if text.startswith(FORMULA) or shown.lstrip().startswith(FORMULA) else shown
