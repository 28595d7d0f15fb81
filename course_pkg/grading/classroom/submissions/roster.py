"""The roster: who is in the class, and which of them an entry of a zip or of a table is.

A roster is a CSV file of three kinds, which its columns tell apart: your own (`id`, …), Moodle's
grading worksheet (`Identifier`, …), and Canvas's gradebook export (`Student`, `ID`, …).
"""

import csv
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path

from course_pkg.common.errors import CourseError
from course_pkg.grading.classroom.submissions.names import shown, valid_student
from course_pkg.grading.questions.display import one_line

ID = ("id", "student_id")
LMS = ("lms_user_id", "moodle_id", "canvas_id")
MOODLE_TIMES = ("%d %B %Y, %I:%M %p", "%d %B %Y, %H:%M", "%d %B %Y, %H:%M:%S")
SUBMITTED = "Last modified (submission)"
POINTS = "Points Possible"  # the row of Canvas's gradebook that belongs to no student
MAX_FIELD = 128  # characters of a name or address; nbgrader's gradebook keeps as many
FIRST_YEAR = 1970
LAST_YEAR = 9998  # in every time zone
MAX_BYTES = 16 * 1024 * 1024  # of a CSV file


class RosterError(CourseError, ValueError):
    """The roster can't be used; the message names the row and what is expected."""


@dataclass(frozen=True)
class Person:
    """One student, or what a row or a file name says about somebody, "" where it says nothing.

    Attributes:
        lms_id: their number in Moodle or Canvas.
        submitted_at: in UTC.
        group: of students who submit together, in Moodle.
    """

    id: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    lms_id: str = ""
    submitted_at: datetime | None = None
    group: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.first_name} {self.last_name}".strip()

    @property
    def called(self) -> tuple[str, ...]:
        return tuple(text for text in (self.full_name, self.id, self.email, self.lms_id) if text)


def agreement(described: Person, student: Person) -> int:
    """Whether a description can be of this student: 0 for somebody else, more for more in common.

    The first of these that both have decides: e-mail address, number, id, name. An id that differs
    decides nothing, since each system has its own; the id of a description may also be the
    student's e-mail address. A name is never compared with an id. A number alone is not enough for
    somebody of another name: that of a group, or of another course, may be the same.
    """
    email = _same(folded(described.email), folded(student.email))
    number = _same(described.lms_id, student.lms_id)
    codes = {folded(student.id), folded(student.email)} - {""}
    same_id = True if folded(described.id) in codes else None
    decides = next((same for same in (email, number, same_id) if same is not None), None)
    if email is None and number and not same_id and _names(described) and _names(student):
        decides = same_name(described, student)
    if decides is None:
        return 1 if same_name(described, student) else 0
    return 1 + [email, number, same_id].count(True) if decides else 0


def same_name(one: Person, other: Person) -> bool:
    """Whether two have a name in common: "Ada Lovelace", or "lovelaceada" as in Canvas's zips."""
    return not _names(one).isdisjoint(_names(other))


class Roster:
    """The people of a class.

    Args:
        complete: whether everybody else is unknown.
        refused: people who can't be graded, each with the reason.
    """

    def __init__(
        self, people: Iterable[Person], complete: bool, refused: Iterable[tuple[Person, str]] = ()
    ) -> None:
        self.people = tuple(people)
        self.complete = complete
        self.refused = tuple(refused)
        self._similar_to = 20
        self._by_key: dict[tuple[str, str], list[Person]] = {}
        for person in self.people:
            for key in _keys(person):
                self._by_key.setdefault(key, []).append(person)

    def find(self, described: Person) -> Person | None:
        """The one student whom a description fits best; None if nobody, or several equally."""
        best = self.fitting(described)
        return best[0] if len(best) == 1 else None

    def fitting(self, described: Person) -> list[Person]:
        """Everybody whom a description fits equally well, and better than anybody else."""
        near = {p.id: p for key in _keys(described) for p in self._by_key.get(key, ())}
        fits = {p.id: agreement(described, p) for p in near.values()}
        most = max(fits.values(), default=0)
        return [p for p in near.values() if most and fits[p.id] == most]

    def doubles(self) -> list[tuple[Person, Person]]:
        pairs = {}
        for person in self.people:
            for other in (p for key in _keys(person) for p in self._by_key[key]):
                if person.id < other.id and agreement(person, other):
                    pairs[person.id, other.id] = (person, other)
        return list(pairs.values())

    def members(self, group: str) -> list[Person]:
        name = folded(group)
        return [person for person in self.people if name and folded(person.group) == name]

    def unknown(self, described: Person) -> str:
        """What to say about somebody who is not in the roster; similar names for the first 20."""
        for person, why in self.refused:
            if agreement(described, person):
                return why
        self._similar_to -= 1  # looking for them takes 50 ms in a class of 5,000
        close = []
        name = described.full_name or described.id
        if self._similar_to >= 0:
            keys = {key: p.id for p in self.people for key in (folded(p.id), *_names(p))}
            close = [keys[key] for key in get_close_matches(_words(name), keys, n=3)]
        number = f" (number {described.lms_id})" if described.lms_id else ""
        similar = f"; similar: {', '.join(dict.fromkeys(close))}" if close else ""
        return f"no student in the roster, or more than one, is {shown(name)}{number}{similar}"


def folded(text: str) -> str:
    """A text by which ids and e-mail addresses are compared: without case or kind of accents."""
    return _nfc(_nfc(text).lower()).strip()


def _same(one: str, other: str) -> bool | None:
    return one == other if one and other else None


def _names(person: Person) -> set[str]:
    if not person.full_name:
        return set()
    short = re.sub(r"[\W_]", "", folded(f"{person.last_name}{person.first_name}"))
    return {_words(person.full_name), short} - {""}


def _words(name: str) -> str:
    return " ".join(re.sub(r"[\W_]+", " ", folded(name)).split())


def _keys(person: Person) -> set[tuple[str, str]]:
    keys = {("number", person.lms_id), ("code", folded(person.id)), ("code", folded(person.email))}
    keys |= {("name", name) for name in _names(person)}
    return {key for key in keys if key[1]}


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def read_roster(path: Path) -> Roster:
    """The people in a CSV file. Raises RosterError if nobody in it can be graded.

    A student's id is the column `id` of your own file; in Moodle's the `Username`, else the `ID
    number`, else the e-mail address; in Canvas's the `SIS Login ID`, else the `SIS User ID`.
    Somebody whose id is impossible, or also somebody else's, or whose time can't be read, is among
    the roster's `refused`.
    """
    header, rows = read_table(path)
    if people_in(header, []) is None:
        raise RosterError(
            f"{path} has the columns {', '.join(map(shown, header[:8])) or 'none'}; expected id, "
            "first_name, last_name, email of your own; or Identifier, Full name, Email address of "
            "Moodle's grading worksheet, downloaded with Moodle in English; or Student, ID, SIS "
            "Login ID of Canvas's gradebook"
        )
    rows = [row for row in rows if not is_points_row(row)]
    made = [(person, row) for row in rows for person in people_in(header, [row]) or ()]
    made = _without_shared_addresses(made)
    times = Counter(folded(person.id) for person, _ in made)
    people = []
    refused = []
    for person, row in made:
        name = shown(person.full_name or person.email or person.id or "a row")
        if not valid_student(person.id):
            why = f"{path}: {name} has the id {shown(person.id)!r}, which can't be one"
        elif times[folded(person.id)] > 1:
            why = f"{path}: {times[folded(person.id)]} students have the id {person.id}"
        else:
            try:
                people.append(replace(person, submitted_at=_submitted_at(row)))
                continue
            except RosterError as error:
                why = f"{path}: {name}: {error}"
        refused.append((person, why))
    if refused and not people:
        raise RosterError(refused[0][1])
    return Roster(people, complete=True, refused=refused)


def people_in(header: Sequence[str], rows: Sequence[dict[str, str]]) -> list[Person] | None:
    """The people in a table, without times; None if its columns are not those of a roster."""
    if "Identifier" in header and not {"Full name", "Grade"}.isdisjoint(header):
        return [_moodle(row) for row in rows]
    if "ID" in header and ("Student" in header or "LastName" in header):
        return [_canvas(row) for row in rows if any(row.get(n) for n in ("ID", "SIS Login ID"))]
    if any(name in header for name in ID):
        return [_own(row) for row in rows]
    return None


def is_points_row(row: dict[str, str]) -> bool:
    """Whether it is the row of Canvas's gradebook that has the points possible."""
    return any(POINTS in row.get(name, "") for name in ("Student", "LastName", "FirstName"))


def _without_shared_addresses(
    made: list[tuple[Person, dict[str, str]]],
) -> list[tuple[Person, dict[str, str]]]:
    """The people of Moodle's worksheet, where students may write a classmate's address as theirs.

    An address of several people identifies none of them: their id is then Moodle's identifier.
    """
    times = Counter(folded(person.id) for person, _ in made)
    return [
        (replace(person, id=row["Identifier"].strip(), email=""), row)
        if times[folded(person.id)] > 1 and "@" in person.id and row.get("Identifier")
        else (person, row)
        for person, row in made
    ]


def _own(row: dict[str, str]) -> Person:
    columns = (ID, ("first_name",), ("last_name",), ("email",), LMS)
    return _person(*(_first(row, *names) for names in columns))


def _moodle(row: dict[str, str]) -> Person:
    first, _, last = _first(row, "Full name").rpartition(" ")
    number = re.search(r"[0-9]+$", _first(row, "Identifier"))
    known = ("Username", "ID number", "Email address")
    if not _first(row, "Full name"):  # anonymous marking
        known = (*known, "Identifier")
    name = _first(row, *known)
    email = _first(row, "Email address")
    person = _person(_lower(name), first, last, email, number[0] if number else "")
    return replace(person, group=one_line(_first(row, "Group"), MAX_FIELD))


def _canvas(row: dict[str, str]) -> Person:
    last, _, first = _first(row, "Student").partition(",")
    login = _first(row, "SIS Login ID", "SIS User ID", "ID")
    first = _first(row, "FirstName") or first
    last = _first(row, "LastName") or last
    email = login if "@" in login else ""
    return _person(_lower(login), first, last, email, _first(row, "ID"))


def _lower(name: str) -> str:
    """An id that is an e-mail address, in lower case; any other unchanged."""
    return name.lower() if "@" in name else name


def _first(row: dict[str, str], *names: str) -> str:
    return next((text for name in names if (text := row.get(name, "").strip())), "")


def _person(name: str, first: str, last: str, email: str, number: str) -> Person:
    texts = (one_line(text.strip(), MAX_FIELD) for text in (first, last, email, number))
    return Person(unicodedata.normalize("NFC", name), *texts)


def _submitted_at(row: dict[str, str]) -> datetime | None:
    at = _first(row, "submitted_at", SUBMITTED)
    return _time(at) if at.strip("-") else None


def _time(text: str) -> datetime:
    text = re.sub(r"(?<=\d) ?(UTC|GMT)$", "Z", text)
    bare = re.sub(r"^[^\W\d]+, ", "", text)  # the day of the week
    for form in (None, *MOODLE_TIMES):
        with suppress(ValueError, OverflowError, OSError):
            read = datetime.strptime(bare, form) if form else datetime.fromisoformat(text)
            if FIRST_YEAR <= read.year <= LAST_YEAR:
                return read.astimezone(UTC)
    raise RosterError(
        f"the time {shown(text)!r} is not clear; expected 2026-03-01 12:00, perhaps with UTC, "
        "or as Moodle writes it in English"
    )


def read_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns and rows of a CSV with commas, semicolons or tabs. Raises RosterError.

    Every row has every column; cells that a row lacks are "".
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RosterError(f"{path} can't be read ({error.strerror})") from None
    if len(data) > MAX_BYTES:
        raise RosterError(f"{path} is larger than {MAX_BYTES:,} bytes")
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")  # as older spreadsheets write it
    first = text.split("\n", 1)[0]
    mark = max(",;\t", key=first.count)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
        table = list(reader)
    except csv.Error as error:
        where = f"line {reader.line_num}: {error}; is a quotation mark missing?"
        raise RosterError(f"{path} is not a CSV file ({where})") from None
    header = [name.strip("\ufeff \t\r\n\xa0") for name in table[0]] if table else []
    empty = dict.fromkeys(header, "")
    return header, [empty | dict(zip(header, row, strict=False)) for row in table[1:] if any(row)]
