"""The report on a class, in `results/<assignment>/`: grades.csv, index.html and students' pages.

A small script pages, sorts and searches the table of index.html; without it, a second table has the
other students. Texts from students are inert: never a formula in the table, never markup on a page.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from course_pkg.common.files import write_atomically
from course_pkg.grading.classroom.feedback import pages
from course_pkg.grading.classroom.gradebook.class_rows import Row, score_statistics
from course_pkg.grading.classroom.gradebook.nbgrader_api import hide
from course_pkg.grading.classroom.gradebook.record import file_stem, without_words
from course_pkg.grading.classroom.submissions.names import inert
from course_pkg.grading.questions.display import one_line
from course_pkg.grading.questions.question_record import notes

CSV_COLUMNS = (
    "student",
    "first_name",
    "last_name",
    "assignment",
    "state",
    "automatic",
    "by_hand",
    "late_penalty",
    "score",
    "max_score",
    "to_mark",
    "submitted",
    "late_hours",
    "reason",
    "start_s",
    "run_s",
    "write_s",
    "limits",
    "sandbox",
    "gpu",
)
TABLE_COLUMNS = {  # of index.html, and whether each holds numbers ("n")
    "student": "",
    "score": "n",
    "state": "",
    "automatic": "n",
    "by hand": "n",
    "late penalty": "n",
    "to mark": "n",
    "why": "",
}
PAGE = 50  # students on a page of the table; class.js counts those that are shown
MODE = 0o640  # grades are nobody else's business


def folder(assignment: str) -> Path:
    """The folder of an assignment's results, in the course's."""
    return Path("results") / assignment


def write(course: Path, assignment: str, rows: Iterable[Row]) -> list[Row]:
    """Write grades.csv, index.html and a page for each record; the rows `without_words`.

    Removes the pages of other students. A page that would not change is not written again.

    Args:
        rows: of the whole class, from `class_rows`.
    """
    into = course / folder(assignment)
    into.mkdir(parents=True, exist_ok=True)
    hide(into.parent)
    hide(into)
    kept = []
    names = {"index.html"}
    for row in rows:
        if row.record is not None:
            path = into / f"{file_stem(row.student)}.html"
            names.add(path.name)
            hide(path)
            if pages.fingerprint_in(path) != (fingerprint := pages.fingerprint(row)):
                write_atomically(path, pages.student(row, fingerprint), MODE)
            row = replace(row, record=without_words(row.record))
        kept.append(row)
    write_atomically(into / "grades.csv", grades_csv(assignment, kept), MODE)
    write_atomically(into / "index.html", index(assignment, kept), MODE)
    for path in into.glob("*.html"):
        if path.name not in names and path.is_file() and pages.is_generated(path):
            path.unlink()
    return kept


def grades_csv(assignment: str, rows: Iterable[Row]) -> str:
    """The class as CSV, texts quoted and inert. Points are empty for a student without any.

    score = automatic + by_hand - late_penalty, at least 0, as in nbgrader's own export. After the
    columns of CSV_COLUMNS there is one for each question, with the points by program.
    """
    out = io.StringIO()
    rows = list(rows)
    asked = dict.fromkeys(q.question for row in rows if row.record for q in row.record.questions)
    columns = (*CSV_COLUMNS, *(f"question: {name}" for name in asked))
    writer = csv.DictWriter(
        out, columns, restval="", quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n"
    )
    writer.writeheader()
    for row in rows:
        texts = {
            "student": row.student,
            "first_name": row.person.first_name,
            "last_name": row.person.last_name,
            "assignment": assignment,
            "state": row.state,
            "reason": row.reason,
        }
        numbers = {}
        if row.score is not None and row.points:
            for name in ("automatic", "by_hand", "late_penalty", "score", "max_score", "to_mark"):
                points = getattr(row.points, name)
                numbers[name] = int(points) if float(points).is_integer() else round(points, 4)
        if row.points and row.points.submitted and not row.waits:
            texts["submitted"] = row.points.submitted.isoformat()
            numbers["late_hours"] = round(row.points.late_s / 3600, 2)
        if row.record:
            texts |= {name: getattr(row.record, name) for name in ("limits", "sandbox", "gpu")}
            for name in ("start_s", "run_s", "write_s"):
                numbers[name] = round(getattr(row.record, name), 3)
        if row.record and row.score is not None:
            numbers |= {f"question: {q.question}": q.earned for q in row.record.questions}
        cells = {name: inert(one_line(text)) for name, text in texts.items()}
        writer.writerow(cells | numbers)
    return out.getvalue()


def index(assignment: str, rows: Sequence[Row]) -> str:
    """The page of a class, with its students in the order of the rows."""
    from markupsafe import Markup

    records = [row.record for row in rows if row.record is not None]
    points = {row.student: row.points for row in rows if row.points is not None}
    stats = score_statistics(records, points)
    to_mark = Counter(row.points.to_mark for row in rows if row.points and not row.waits)
    to_mark.pop(0, None)
    all_groups = groups(rows)
    number = {name: str(at) for at, (name, _) in enumerate(all_groups)}
    return pages.render(
        "index",
        title=f"{assignment}: results",
        assignment=assignment,
        rows=rows,
        page=PAGE,
        columns=TABLE_COLUMNS.items(),
        flags=flags,
        groups=all_groups,
        groups_of=lambda row: " ".join(number[name] for name in (row.state, *flags(row))),
        submissions=len([row for row in rows if row.state != "no-submission"]),
        by_program=max((record.max_score for record in records), default=0),
        to_mark=to_mark.most_common(),
        waiting=len([row for row in rows if row.waits]),
        stats=stats,
        bins=pages.histogram(stats.scores, stats.most) if stats else [],
        unsafe=len([record for record in records if record.is_unsafe]),
        unprotected="; ".join(sorted({r.unprotected for r in records} - {""})),
        script=Markup((pages.TEMPLATES / "class.js").read_text("utf-8")),
    )


def flags(row: Row) -> tuple[str, ...]:
    """What to know about a submission besides its state: late, to mark, …"""
    points = None if row.waits else row.points
    record = row.record
    applies = {
        "late": points and points.late_s,
        "to mark": points and points.to_mark,
        "remarks": record and record.remarks,
        "another name": record and notes(record.questions),
        "no sandbox": record and record.is_unsafe,
    }
    return tuple(name for name, is_so in applies.items() if is_so)


def groups(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """What the table can show alone: states and then flags, each with its number of students."""
    states = Counter(row.state for row in rows)
    flagged = Counter(flag for row in rows for flag in flags(row))
    return [*states.most_common(), *flagged.most_common()]


def late_note(course: Path, assignment: str) -> str:
    """Who is late by the report's table, and by how much, 10 by name; "" if nobody is."""
    late = [row for row in _table(course, assignment) if row["late_hours"] not in ("", "0", "0.0")]
    named = [f"{row['student']} ({float(row['late_hours']):g} h)" for row in late[:10]]
    if len(late) > 10:
        named.append(f"and {len(late) - 10} more, see grades.csv")
    return ", ".join(named)


def waiting_points(course: Path, assignment: str) -> float:
    """By the report's table, the points that wait for a person, in the submission with the most."""
    return max((float(row["to_mark"] or 0) for row in _table(course, assignment)), default=0)


def _table(course: Path, assignment: str) -> list[dict[str, str]]:
    with open(course / folder(assignment) / "grades.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
