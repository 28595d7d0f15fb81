"""Grades for Moodle and Canvas: their own CSV files, with the scores of a class in them.

Moodle's grading worksheet and Canvas's gradebook export are best filled in: they name the people as
the system knows them. Without one, a file is made from the gradebook's names and numbers.
"""

import csv
import io
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from course_pkg.common.files import atomic_file
from course_pkg.grading.classroom.feedback.class_report import MODE
from course_pkg.grading.classroom.gradebook.class_rows import Row
from course_pkg.grading.classroom.submissions.names import inert, shown
from course_pkg.grading.classroom.submissions.roster import (
    POINTS,
    Person,
    Roster,
    RosterError,
    agreement,
    folded,
    is_points_row,
    people_in,
    read_table,
)
from course_pkg.grading.questions.display import one_line

MOODLE = (
    "Identifier",
    "Full name",
    "Email address",
    "Status",
    "Grade",
    "Maximum Grade",
    "Grade can be changed",
    "Last modified (submission)",
    "Last modified (grade)",
    "Feedback comments",
)
CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
COMMENTS = "Feedback comments"  # the teacher's own, which go back to Moodle as they are
NAMES = {*CANVAS, "LastName", "FirstName", "Integration ID", "Root Account"}
FEEDBACK = "moodle-feedback.zip"
EXCUSED = "EX"  # instead of points, in Canvas
NO_NUMBER = (
    "students without Moodle's number: {}; Moodle needs --template with the worksheet that you "
    "downloaded from it, or the column lms_user_id in the roster"
)
FILES = ("moodle.csv", "canvas.csv", FEEDBACK)  # in the folder of the assignment's results


def owners(
    header: Sequence[str], table: Sequence[dict[str, str]], rows: Sequence[Row]
) -> tuple[list[Row | None], list[str]]:
    """The student's `Row` for each row of the table, or None; and what is not clear.

    No score may go to somebody else: no student gets a row that fits several, nor one of several
    rows that fit one student or have the same number, nor a row that has only a student's name and
    another e-mail address as login.
    """
    by_id = {row.student: row for row in rows}
    known = Roster((row.person for row in rows), complete=True)
    described = [_described(header, entry) for entry in table]
    fitting = [
        known.fitting(person) if person else [] for person in _without_names(described, known)
    ]
    times = Counter(person.lms_id for person in described if person and person.lms_id)
    doubts: list[str] = []
    claims: dict[str, list[Person]] = {}
    for person, fits in zip(described, fitting, strict=True):
        if fits and times[person.lms_id] > 1:
            fits.clear()
            doubts.append(f"{times[person.lms_id]} rows have one number: {_said(person)}")
        elif fits and all(_another_login(person, one) for one in fits):
            names = ", ".join(one.id for one in fits)
            fits.clear()
            doubts.append(
                f"a row has the name of {names}, but another e-mail address as login: "
                f"{_said(person)}"
            )
        if len(fits) > 1:
            doubts.append(
                f"a row fits several students ({', '.join(p.id for p in fits)}): {_said(person)}"
            )
        for one in fits:
            claims.setdefault(one.id, []).append(person)
    for student, people in claims.items():
        if len(people) > 1:
            who = "; ".join(map(_said, people))
            doubts.append(f"{len(people)} rows fit the student {student}: {who}")
    owned = [
        by_id[fits[0].id] if len(fits) == 1 and len(claims[fits[0].id]) == 1 else None
        for fits in fitting
    ]
    return owned, doubts


def shared_numbers(rows: Sequence[Row]) -> set[str]:
    """The numbers in Moodle or Canvas that several students have: they say nothing about whose."""
    times = Counter(number(row.person) for row in rows)
    return {one for one, count in times.items() if one and count > 1}


def number(person: Person) -> str:
    """The person's number in Moodle or Canvas; "" if what is stored is not a number."""
    return person.lms_id if person.lms_id.isascii() and person.lms_id.isdigit() else ""


def _described(header: Sequence[str], entry: dict[str, str]) -> Person | None:
    """What a row says about its student; None if it belongs to no student.

    Canvas's login may look like an e-mail address, but it need not be the student's.
    """
    if is_points_row(entry):
        return None
    people = people_in(header, [entry])
    if not people:
        return None
    (person,) = people
    email = person.email if "Identifier" in header else ""
    return replace(person, email=email, lms_id=number(person))


def _without_names(people: Sequence[Person | None], known: Roster) -> list[Person | None]:
    """The descriptions; if the table has the class's ids, a row's name proves nothing beside an id.

    So a student's namesake who has another id, and is not in the class, is nobody.
    """
    codes = {folded(text) for p in known.people for text in (p.id, p.email) if text}
    if not any(person and folded(person.id) in codes for person in people):
        return list(people)
    return [
        replace(person, first_name="", last_name="") if person and person.id else person
        for person in people
    ]


def _another_login(described: Person, student: Person) -> bool:
    """Whether only the name is the student's, whose e-mail address is known and is not the login's.

    Students can change their own names in Canvas.
    """
    return bool("@" in described.id and student.email) and agreement(described, student) == 1


def _said(person: Person) -> str:
    parts = (person.full_name, person.id, person.email, person.lms_id)
    return shown(" ".join(dict.fromkeys(part for part in parts if part)))


@dataclass(frozen=True)
class LmsTable:
    """A CSV for Moodle or Canvas.

    Attributes:
        left_out: students with a score whom it does not have.
        doubts: rows in which no score was written, because whose they are is not clear.
    """

    text: str
    written: int
    left_out: tuple[str, ...]
    doubts: tuple[str, ...]
    notes: tuple[str, ...]


def moodle(rows: Sequence[Row], worksheet: Path | None) -> LmsTable:
    """Moodle's worksheet, as downloaded, with the grades filled in. Raises RosterError."""
    if worksheet is None:
        table = [_moodle_row(row) for row in rows if number(row.person)]
        missing = len(rows) - len(table)
        notes = (
            *((NO_NUMBER.format(missing),) if missing else ()),
            'when you upload it, tick "Allow updating records that have been modified more '
            'recently in Moodle than in the spreadsheet"',
        )
        return _filled(list(MOODLE), table, rows, "Grade", "", notes)
    header, table = read_table(worksheet)
    if "Identifier" not in header or "Grade" not in header:
        raise RosterError(
            f"{worksheet} is not Moodle's grading worksheet: it has no column Identifier or Grade"
        )
    most = next((name for name in header if name.casefold() == "maximum grade"), "")
    return _filled(header, table, rows, "Grade", most, ())


def canvas(
    rows: Sequence[Row], assignment: str, gradebook: Path | None, column: str = ""
) -> LmsTable:
    """Canvas's exported gradebook with one assignment's column filled in. Raises RosterError.

    Args:
        column: its name there; by default the one that is called like the assignment.
    """
    if gradebook is None:
        name = column or assignment
        most = max((row.points.max_score for row in rows if row.points), default=0)
        first = {"Student": f"    {POINTS}", name: f"{most:g}"}
        table = [first, *(_canvas_row(row) for row in rows)]
        notes = (f"Canvas will ask which of its assignments {name} is",)
        return _filled([*CANVAS, name], table, rows, name, POINTS, notes)
    header, table = read_table(gradebook)
    name = _column(gradebook, header, column or assignment)
    kept = [title for title in header if title in NAMES] + [name]
    table = [{title: row.get(title, "") for title in kept} for row in table]
    return _filled(kept, table, rows, name, POINTS, ())


def require_own(into: Path, made: LmsTable, column: str) -> None:
    """Raise RosterError if a file has rows or columns that an export without a template lacks.

    It was filled in from a template then, and may be the only copy with the system's names.

    Args:
        column: of the scores, which may differ.
    """
    if not into.exists():
        return
    header, rows = read_table(into)
    own = csv.DictReader(io.StringIO(made.text))

    def named(row: dict[str, str]) -> dict[str, str]:
        return {name: text for name, text in row.items() if name not in (column, "Maximum Grade")}

    known = [named(row) for row in own]
    if header != list(own.fieldnames or ()) or any(named(row) not in known for row in rows):
        raise RosterError(
            f"{into} was filled in from a template: give --template again, or move the file away"
        )


def feedback_zip(course: Path, assignment: str, rows: Sequence[Row], into: Path) -> int:
    """Write nbgrader's feedback as a zip that Moodle's "Upload multiple feedback files" reads.

    The number of students whose feedback is in it; nothing is written for 0. Moodle goes by the
    number, so a student whose number somebody else has is left out.
    """
    shared = shared_numbers(rows)
    pages = [
        (row.person, page)
        for row in rows
        if number(row.person)
        and number(row.person) not in shared
        and not row.waits  # a page there is of an earlier submission
        if (page := course / "feedback" / row.student / assignment / f"{assignment}.html").is_file()
    ]
    if pages:
        with atomic_file(into, MODE) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as z:
            for person, page in pages:
                name = re.sub(r"[_/\\:]", " ", one_line(person.full_name or person.id))
                folder = f"{name}_{person.lms_id}_assignfeedback_file_"
                z.writestr(f"{folder}/{page.name}", page.read_bytes())
    return len({person.id for person, _ in pages})


def old_feedback(course: Path, assignment: str, rows: Sequence[Row]) -> list[str]:
    """The students who were graded again after nbgrader made their feedback."""
    outdated = []
    for row in rows:
        page = course / "feedback" / row.student / assignment / f"{assignment}.html"
        graded = row.record.graded_at if row.record else ""
        if not graded or row.waits or not page.is_file():
            continue
        if page.stat().st_mtime < datetime.fromisoformat(graded).timestamp():
            outdated.append(row.student)
    return outdated


def _filled(
    header: list[str],
    table: list[dict[str, str]],
    rows: Sequence[Row],
    column: str,
    maximum: str,
    notes: tuple[str, ...],
) -> LmsTable:
    """The table with scores in `column`; `maximum` is the column, or row, of the most points."""
    owned, doubts = owners(header, table, rows)
    scored = set()
    scaled = set()
    every = next((r[column] for r in table if is_points_row(r)), "")
    excused = []
    for entry, row in zip(table, owned, strict=True):
        if row is None or row.score is None or row.points is None:
            continue
        if maximum == POINTS and entry.get(column, "").strip().upper() == EXCUSED:
            excused.append(row.student)
            scored.add(row.student)
            continue
        most = every if maximum == POINTS else entry.get(maximum, "")
        score = row.score
        if (possible := _number(most)) and possible != row.points.max_score:
            scaled.add(f"{row.points.max_score:g} to {possible:g}")
            score *= possible / row.points.max_score
        entry[column] = f"{score:.2f}".rstrip("0").rstrip(".")
        scored.add(row.student)
    out = io.StringIO()
    writer = csv.DictWriter(out, header, lineterminator="\n", restval="", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(
        {name: text if name == COMMENTS else inert(text) for name, text in entry.items()}
        for entry in table
    )
    left = sorted(
        row.student for row in rows if row.score is not None and row.student not in scored
    )
    notes += tuple(f"scores are scaled from {change} points" for change in sorted(scaled))
    if excused:
        notes += (f"left as they are, because they are excused ({EXCUSED}): {', '.join(excused)}",)
    written = len(scored) - len(excused)
    return LmsTable(out.getvalue(), written, tuple(left), tuple(doubts), notes)


def _column(path: Path, header: list[str], name: str) -> str:
    def bare(title: str) -> str:
        return re.sub(r"[\W_]", "", re.sub(r" \(\d+\)$", "", title).casefold())

    titles = [title for title in header if title not in NAMES]
    matching = [t for t in titles if t == name] or [t for t in titles if bare(t) == bare(name)]
    if len(matching) != 1:
        listed = ", ".join(t for t in titles if re.search(r" \(\d+\)$", t)) or ", ".join(titles)
        raise RosterError(
            f"{path} has {len(matching) or 'no'} columns for {name}; choose one with --column: "
            f"{listed or 'none'}"
        )
    return matching[0]


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return None


def _moodle_row(row: Row) -> dict[str, str]:
    most = f"{row.points.max_score:g}" if row.points else ""
    return {
        "Identifier": f"Participant {row.person.lms_id}",
        "Full name": row.person.full_name or row.student,
        "Email address": row.person.email,
        "Maximum Grade": most,
        "Grade can be changed": "Yes",
        "Last modified (submission)": "-",
        "Last modified (grade)": "-",
    }


def _canvas_row(row: Row) -> dict[str, str]:
    p = row.person
    name = f"{p.last_name}, {p.first_name}".strip(", ") or row.student
    return {"Student": name, "ID": number(p), "SIS Login ID": row.student}
