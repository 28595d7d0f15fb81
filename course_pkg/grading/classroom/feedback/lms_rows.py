"""Whose the rows of a table from Moodle or Canvas are: no score may go to somebody else.

Chapter: appendix/for-instructors.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from course_pkg.grading.classroom.gradebook.class_rows import Row
from course_pkg.grading.classroom.submissions.names import shown
from course_pkg.grading.classroom.submissions.roster import Person, Roster, agreement, folded
from course_pkg.grading.classroom.submissions.roster_files import is_points_row, people_in


def owners(
    header: Sequence[str], table: Sequence[dict[str, str]], rows: Sequence[Row]
) -> tuple[list[Row | None], list[str]]:
    """The student's `Row` for each row of the table, or None; and what is not clear.

    No student gets a row that fits several, nor one of several rows that fit one student or have
    the same number, and a row that has only a student's name and another e-mail address as login.
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
    found = [
        by_id[fits[0].id] if len(fits) == 1 and len(claims[fits[0].id]) == 1 else None
        for fits in fitting
    ]
    return found, doubts


def shared_numbers(rows: Sequence[Row]) -> set[str]:
    """The numbers in Moodle or Canvas that several students have: they say nothing about whose."""
    times = Counter(number(row.person) for row in rows)
    return {one for one, count in times.items() if one and count > 1}


def number(person: Person) -> str:
    """The person's number in Moodle or Canvas; "" if what is stored is not a number.

    >>> number(Person("ada", lms_id="101")), number(Person("ada", lms_id="=2+2"))
    ('101', '')
    """
    return person.lms_id if person.lms_id.isascii() and person.lms_id.isdigit() else ""


def _described(header: Sequence[str], entry: dict[str, str]) -> Person | None:
    """What a row says about its student; None if it belongs to no student.

    Canvas's login may look like an e-mail address, but it need not be the student's.
    """
    if is_points_row(entry):
        return None
    found = people_in(header, [entry])
    if not found:
        return None
    (person,) = found
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
