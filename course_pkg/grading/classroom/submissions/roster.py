"""The roster: who is in the class, and which of them an entry of a zip or of a table is.

Chapter: appendix/for-instructors.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches

from course_pkg.common.errors import CourseError
from course_pkg.grading.classroom.submissions.names import shown


class RosterError(CourseError, ValueError):
    """The roster can't be used; the message names the row and what is expected."""


@dataclass(frozen=True)
class Person:
    """One student. lms_id: their number in Moodle or Canvas. submitted_at: in UTC.

    group: of students who submit together, in Moodle.

    Also what a row or a file name says about somebody; what it does not say is "".
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
        """First and last name."""
        return f"{self.first_name} {self.last_name}".strip()

    @property
    def called(self) -> tuple[str, ...]:
        """What the student may call themselves: full name, id, e-mail address and number."""
        return tuple(text for text in (self.full_name, self.id, self.email, self.lms_id) if text)


def agreement(described: Person, student: Person) -> int:
    """Whether a description can be of this student: 0 for somebody else, more for more in common.

    The first of these that both have decides: e-mail address, number, id, name. An id that differs
    decides nothing, since each system has its own; the id of a description may also be the
    student's e-mail address. A name is never compared with an id. A number alone is not enough for
    somebody of another name: that of a group, or of another course, may be the same.

    >>> agreement(Person("", "ada", "LOVELACE"), Person("al1", "Ada", "Lovelace"))
    1
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
    """The people of a class. complete: whether everybody else is unknown.

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
        """The one student whom a description fits best; None if nobody, or several equally.

        >>> Roster([Person("al1", "Ada", "Lovelace")], True).find(Person("", "lovelaceada")).id
        'al1'
        """
        best = self.fitting(described)
        return best[0] if len(best) == 1 else None

    def fitting(self, described: Person) -> list[Person]:
        """Everybody whom a description fits equally well, and better than anybody else."""
        near = {p.id: p for key in _keys(described) for p in self._by_key.get(key, ())}
        fits = {p.id: agreement(described, p) for p in near.values()}
        most = max(fits.values(), default=0)
        return [p for p in near.values() if most and fits[p.id] == most]

    def doubles(self) -> list[tuple[Person, Person]]:
        """Pairs of ids that may belong to one person, by all that is known about both."""
        found = {}
        for person in self.people:
            for other in (p for key in _keys(person) for p in self._by_key[key]):
                if person.id < other.id and agreement(person, other):
                    found[person.id, other.id] = (person, other)
        return list(found.values())

    def members(self, group: str) -> list[Person]:
        """The students of a group of that name."""
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
    """A text by which ids and e-mail addresses are compared: without case or kind of accents.

    >>> folded(" Zoe\u0308@Uni.edu") == folded("zo\u00cb@uni.edu"), folded("Straße")
    (True, 'straße')
    """
    return _nfc(_nfc(text).lower()).strip()


def _same(one: str, other: str) -> bool | None:
    """Whether two texts are the same; None if one of them is not known."""
    return one == other if one and other else None


def _names(person: Person) -> set[str]:
    """A person's name as it is compared: as words, and in Canvas's short form."""
    if not person.full_name:
        return set()
    short = re.sub(r"[\W_]", "", folded(f"{person.last_name}{person.first_name}"))
    return {_words(person.full_name), short} - {""}


def _words(name: str) -> str:
    """The words of a name; Moodle and Canvas leave out some signs."""
    return " ".join(re.sub(r"[\W_]+", " ", folded(name)).split())


def _keys(person: Person) -> set[tuple[str, str]]:
    """What a description and a student must share one of, to be the same person."""
    keys = {("number", person.lms_id), ("code", folded(person.id)), ("code", folded(person.email))}
    keys |= {("name", name) for name in _names(person)}
    return {key for key in keys if key[1]}


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)
