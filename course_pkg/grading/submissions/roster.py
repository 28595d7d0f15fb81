"""The roster: who is in the class, from a CSV of your own, of Moodle or of Canvas.

Three kinds of file are read, told apart by their columns: your own (`id`, and any of `first_name`,
`last_name`, `email`, `lms_user_id`, `submitted_at`), Moodle's grading worksheet (`Identifier`,
`Full name`, …), and Canvas's gradebook export (`Student`, `ID`, `SIS Login ID`, …).

Chapter: appendix/for-instructors.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path

from .names import shown, valid_student

MAX_BYTES = 16 * 1024 * 1024
ID, LMS = ("id", "student_id"), ("lms_user_id", "moodle_id", "canvas_id")
MOODLE_TIMES = ("%d %B %Y, %I:%M %p", "%d %B %Y, %H:%M", "%d %B %Y, %H:%M:%S")
SUBMITTED = "Last modified (submission)"


class RosterError(ValueError):
    """The roster can't be used; the message names the row and what is expected."""


@dataclass(frozen=True)
class Person:
    """One student. lms_id: their number in Moodle or Canvas. submitted_at: in UTC."""

    id: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    lms_id: str = ""
    submitted_at: datetime | None = None

    @property
    def full_name(self) -> str:
        """First and last name.

        >>> Person("ada", "Ada", "Lovelace").full_name
        'Ada Lovelace'
        """
        return f"{self.first_name} {self.last_name}".strip()


class Roster:
    """The people of a class. complete: whether everybody else is unknown."""

    def __init__(self, people: Iterable[Person], complete: bool) -> None:
        self.people, self.complete = tuple(people), complete
        self._similar_to = 20
        self._numbers: dict[str, list[Person]] = {}
        self._ids: dict[str, list[Person]] = {}
        self._emails: dict[str, list[Person]] = {}
        self._by_name: dict[str, list[Person]] = {}
        for p in self.people:
            self._numbers.setdefault(p.lms_id, []).append(p)
            self._ids.setdefault(_plain(p.id), []).append(p)
            self._emails.setdefault(_plain(p.email), []).append(p)
            for name in set(map(_plain, _names(p))):
                self._by_name.setdefault(name, []).append(p)

    def find(self, name: str, lms_id: str = "") -> Person | None:
        """The one person with this number, else with this id, e-mail address or name.

        name: an id, a full name ("Ada Lovelace"), or Canvas's short name ("lovelaceada").

        >>> Roster([Person("al1", "Ada", "Lovelace")], True).find("lovelaceada").id
        'al1'
        """
        if lms_id and (same := self._numbers.get(lms_id)):
            return same[0] if len(same) == 1 else None
        key = _plain(name)
        for people in (self._ids, self._emails, self._by_name):
            same = people.get(key, [])
            same = [p for p in same if not (lms_id and p.lms_id)]  # that is somebody else
            if same:
                return same[0] if len(same) == 1 else None
        return None

    def unknown(self, name: str, lms_id: str) -> str:
        """What to say about somebody who is not in the roster; similar names for the first 20."""
        self._similar_to -= 1  # looking for them takes 50 ms in a class of 5,000
        close = []
        if self._similar_to >= 0:
            keys = {_plain(key): p.id for p in self.people for key in (p.id, *_names(p))}
            close = [keys[key] for key in get_close_matches(_plain(name), keys, n=3)]
        who = f"{shown(name)} (number {lms_id})" if lms_id else shown(name)
        similar = f"; similar: {', '.join(dict.fromkeys(close))}" if close else ""
        return f"no student in the roster, or more than one, is {who}{similar}"


def read_roster(path: Path) -> Roster:
    """The people in a CSV file. Raises RosterError.

    A student's id is the column `id` of your own file; in Moodle's the `Username`, else the
    `ID number`, else the e-mail address; in Canvas's the `SIS Login ID`, else the `SIS User ID`.
    """
    header, rows = read_table(path)
    made = people_in(
        header, [row for row in rows if "Points Possible" not in row.get("Student", "")]
    )
    if made is None:
        raise RosterError(
            f"{path} has the columns {', '.join(map(shown, header[:8])) or 'none'}; expected id, "
            "first_name, last_name, email, or Moodle's grading worksheet, or Canvas's gradebook"
        )
    seen: dict[str, str] = {}
    for person in made:
        if not valid_student(person.id):
            name = person.full_name or "a row"
            raise RosterError(f"{path}: {name} has the id {shown(person.id)!r}, which can't be one")
        if seen.setdefault(_plain(person.id), person.id) is not person.id:
            raise RosterError(f"{path}: two students have the id {person.id}")
    return Roster(made, complete=True)


def people_in(header: list[str], rows: list[dict[str, str]]) -> list[Person] | None:
    """The people in a table; None if its columns are not those of a roster. Raises RosterError."""
    if "Identifier" in header and "Full name" in header:
        return [_moodle(row) for row in rows]
    if "ID" in header and ("Student" in header or "LastName" in header):
        return [_canvas(row) for row in rows if any(row.get(n) for n in ("ID", "SIS Login ID"))]
    if any(name in header for name in ID):
        return [_own(row) for row in rows]
    return None


def read_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns and rows of a CSV with commas, semicolons or tabs. Raises RosterError."""
    try:
        data = path.read_bytes()[: MAX_BYTES + 1]
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
        table = list(csv.reader(io.StringIO(text, newline=""), delimiter=mark))
    except csv.Error as error:
        raise RosterError(f"{path} is not a CSV file ({error})") from None
    header = [name.strip() for name in table[0]] if table else []
    return header, [dict(zip(header, row, strict=False)) for row in table[1:] if any(row)]


def _own(row: dict[str, str]) -> Person:
    def field(*names: str) -> str:
        return next((row[n].strip() for n in names if row.get(n, "").strip()), "")

    at = field("submitted_at")
    return Person(
        _nfc(field(*ID)), field("first_name"), field("last_name"), field("email"), field(*LMS),
        _time(at) if at else None,
    )  # fmt: skip


def _moodle(row: dict[str, str]) -> Person:
    first, _, last = row["Full name"].strip().rpartition(" ")
    name = row.get("Username") or row.get("ID number") or row.get("Email address") or ""
    number = re.sub(r"\D", "", row["Identifier"])
    at = row.get(SUBMITTED, "").strip()
    when = _time(at) if at.strip("-") else None
    email = row.get("Email address", "").strip()
    return Person(_nfc(name.strip()), first, last, email, number, when)


def _canvas(row: dict[str, str]) -> Person:
    last, _, first = row.get("Student", "").partition(",")
    first, last = row.get("FirstName", first).strip(), row.get("LastName", last).strip()
    name = row.get("SIS Login ID") or row.get("SIS User ID") or row["ID"]
    email = name if "@" in name else ""
    return Person(_nfc(name.strip()), first, last, email.strip(), row["ID"].strip())


def _time(text: str) -> datetime:
    """A time in ISO format, or as Moodle writes it in English; without a zone, of this machine.

    >>> _time("2026-03-01 12:00+00:00") == _time("2026-03-01T13:00:00+01:00")
    True
    """
    with suppress(ValueError):
        return datetime.fromisoformat(text).astimezone(UTC)
    bare = re.sub(r"^[^\W\d]+, ", "", text)  # the day of the week
    for form in MOODLE_TIMES:
        with suppress(ValueError):
            return datetime.strptime(bare, form).astimezone(UTC)
    raise RosterError(
        f"the time {shown(text)!r} is not clear; expected 2026-03-01 12:00, or as Moodle "
        "writes it in English"
    )


def _names(person: Person) -> list[str]:
    """A person's name as Moodle and Canvas write it in file names."""
    short = re.sub(r"\W", "", _nfc(f"{person.last_name}{person.first_name}"))
    return [person.full_name, short] if person.full_name else []


def _plain(text: str) -> str:
    return " ".join(_nfc(text).casefold().replace("_", " ").split())


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)
