"""Compares what a course has at the end of a step with what its members deserve."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import unescape
from pathlib import Path

from tests.classroom.corpus import ASSIGNMENT

from .course import TASK, Course
from .members import Member, penalty
from .report import differences

MOST = 28.0  # points of the assignment, those by hand included
CLOSE = 0.01  # grades.csv has four decimals, the others more
Totals = dict[str, float]


def states(course: Course, people: Iterable[Member]) -> list[str]:
    """Whose state or automatic points are not what the first submission deserves."""
    found, wrong = course.grades(), []
    for one in people:
        row = found.pop(one.id, None)
        if row is None or row["state"] not in one.states:
            wrong.append(f"{one.id}: {row and row['state']}; expected {' or '.join(one.states)}")
        elif row["automatic"] and float(row["automatic"]) != one.points:
            wrong.append(f"{one.id}: {row['automatic']} points; expected {one.points:g}")
        elif not row["automatic"] and one.known and one.submits:
            wrong.append(f"{one.id}: no points; expected {one.points:g}")
    return wrong + [f"{student}: is not in the class" for student in found]


def gradebooks(course: Course, other: Course) -> list[str]:
    """How the gradebook differs from that of another course, cell by cell."""
    return differences(course.gradebook(), other.gradebook())


def twice(counts: Mapping[str, int], changed: Iterable[str]) -> list[str]:
    """Who was graded more than once.

    >>> twice({"ada": 1, "ben": 2}, [])
    ['ben: graded 2 times']
    """
    wrong = [f"{student}: graded {count} times" for student, count in counts.items() if count > 1]
    return wrong + [f"{student}: the record was written again" for student in changed]


def only(found: Iterable[str], expected: Iterable[str]) -> list[str]:
    """Who was graded and should not have been, or the reverse.

    >>> only({"ada"}, {"ben"})
    ['ada: graded', 'ben: not graded']
    """
    found, expected = set(found), set(expected)
    wrong = [f"{student}: graded" for student in sorted(found - expected)]
    return wrong + [f"{student}: not graded" for student in sorted(expected - found)]


def missing(course: Course, people: Iterable[Member]) -> list[str]:
    """Who submitted and has no record, or no row in the gradebook."""
    rows, records = course.grades(), course.records()
    with_points = {student for student, cell in course.gradebook() if not cell}
    wrong = []
    for one in filter(lambda one: one.submits, people):
        if one.known and (one.id not in records or one.id not in with_points):
            wrong.append(f"{one.id}: no record, or no points in the gradebook")
        if one.id not in rows:
            wrong.append(f"{one.id}: is not in the results")
    return wrong


def by_hand(course: Course, points: Mapping[str, float], review: Iterable[str]) -> list[str]:
    """Whose points by hand or comment got lost, and who is to be reviewed and isn't marked so."""
    review, book = set(review), course.gradebook()
    expected = {s: (given, s in review, comment(s)) for s, given in points.items()}
    found = {}
    for student in points:
        if cell := book.get((student, TASK)):
            _, manual, _, needs, _, said = cell
            found[student] = (manual, bool(needs), said)
    return differences(found, expected)


def comment(student: str) -> str:
    """What the instructor writes to a student."""
    return f"Read by hand, {student}: größer than 1 & less than 3"


def totals(people: Iterable[Member], shares: Mapping[str, float], points: Mapping[str, float],
           extended: Mapping[str, float]) -> Totals:  # fmt: skip
    """The total of everybody who is in the gradebook.

    shares: automatic points of those who submitted again. points: by hand. extended: hours.
    """
    made = {}
    for one in people:
        if one.known and one.submits:
            earned = shares.get(one.id, one.points) + points.get(one.id, 0.0)
            late = 0.0 if one.id in shares else one.hours_late - extended.get(one.id, 0.0)
            made[one.id] = earned - penalty(earned, late)
    return made


def agree(course: Course, expected: Totals) -> list[str]:
    """Where a total is not the expected one: gradebook, results, exports, feedback."""
    rows = course.gradebook().items()
    book = {s: total[0] - (total[1] or 0) for (s, cell), total in rows if not cell}
    numbers = {row["lms_user_id"]: s for s, row in course.table("roster.csv", "id").items()}
    own = {s: row["score"] for s, row in course.grades().items()}
    exported = course.table("grades.csv", "student_id")
    folder = f"results/{ASSIGNMENT}"
    moodle = course.table(f"{folder}/moodle.csv", "Identifier")
    sources = {
        "gradebook": book,
        "results/": own,
        "nbgrader export": {s: exported[s]["score"] for s in expected if s in exported},
        "moodle.csv": {numbers[n.split()[-1]]: row["Grade"] for n, row in moodle.items()},
        "feedback": {s: _score(course.root / "feedback" / s) for s in expected},
    }
    wrong = []
    for name, found in sources.items():
        for student, total in expected.items():
            given = found.get(student)
            if given in (None, "") or abs(float(given) - total) > CLOSE:
                wrong.append(f"{student}: {given} in {name}; expected {total:g}")
    return wrong


def pages(course: Course, points: Mapping[str, float], people: Sequence[Member]) -> list[str]:
    """Feedback without the comment, and pages with something that a hostile member wrote."""
    wrong = []
    for student in points:
        text = unescape(_page(course.root / "feedback" / student))
        if comment(student) not in text:
            wrong.append(f"{student}: the feedback has no comment")
    never = {text for one in people if one.case for text in one.case.never}
    for folder in ("results", "feedback"):
        for path in sorted((course.root / folder).rglob("*.html")):
            text = path.read_text()
            wrong += [f"{path.relative_to(course.root)}: has {bad}" for bad in never if bad in text]
    return wrong


def _page(folder: Path) -> str:
    path = folder / ASSIGNMENT / f"{ASSIGNMENT}.html"
    return path.read_text() if path.is_file() else ""


def _score(folder: Path) -> str | None:
    """The total on a student's feedback page; None if there is none."""
    found = re.search(rf"{ASSIGNMENT} \(Score: ([0-9.]+) / {MOST:.1f}\)", _page(folder))
    return found and found[1]
