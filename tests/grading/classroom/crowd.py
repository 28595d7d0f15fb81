"""A large class made up of a few kinds of students, the same at every call."""

from datetime import UTC, datetime, timedelta

from course_pkg.grading.classroom.execution.runner_output import State
from course_pkg.grading.classroom.gradebook.class_rows import Points, Row
from course_pkg.grading.classroom.gradebook.record import Record
from course_pkg.grading.classroom.submissions.roster import Person
from tests.grading.classroom import recorded
from tests.grading.classroom.recorded import questions, unreadable, wrong

DUE = datetime(2026, 3, 1, 12, tzinfo=UTC)
FIRST = ("Ada", "Zoë", "Łukasz", "Mei", "Jürgen", "Nia", "İpek", "Oluwaseun", "Ana María")
LAST = ("Lovelace", "Müller", "Żak", "O’Neill", "Chen", "de la Cruz", "Öztürk", "Adeyemi")
LOST = ("forward", "counts", "merge", "inject", "by-hand/parameters")


def crowd_record(number: int) -> Record:
    """The record of one student; every 50 of them have all kinds."""
    student = f"s{number:05}"
    lost = {name: wrong() for at, name in enumerate(LOST) if number * 7 % (at + 2) == 1}
    changes = {
        3: {"state": State.CELL_TIMED_OUT, "reason": "cell 7 took more than 60 s"},
        13: {"state": State.REFUSED, "reason": f"the notebook of {student} is a link"},
        17: {"remarks": ("a locked cell had been changed",)},
        23: {"state": State.WAITING, "reason": "there is no GPU"},
    }
    if number % 50 == 29:
        return unreadable(student)
    return recorded.record(
        student, **{"questions": questions(lost), **changes.get(number % 50, {})}
    )


def crowd(count: int) -> list[Row]:
    """The rows of a class of `count` students, in their order."""
    rows = []
    for number in range(count):
        last = LAST[number % len(LAST)] + ("" if number % 3 else f"-{LAST[number % 5]}")
        person = Person(f"s{number:05}", FIRST[number % len(FIRST)], last)
        if number % 50 == 41:
            rows.append(Row(person, None, None))
            continue
        record = crowd_record(number)
        late = (number % 11 == 4) * 3600.0 * (number % 7 + 1)
        by_hand, to_mark = (0, 0) if number % 4 else (2.5, 4)
        when = DUE + timedelta(seconds=late or -60 * number)
        points = Points(record.score, by_hand, late / 3600, 28, to_mark, when, late)
        rows.append(Row(person, record, points))
    return rows
