"""The rows of a whole class: everybody with a record, a submission or a line in the roster.

Chapter: appendix/for-instructors.
"""

from collections.abc import Iterable

from ..feedback.row import Row
from ..results.keys import secret
from ..results.records import Record
from ..results.store import Store
from ..submissions.roster import Person
from .gradebook import CourseGradebook
from .lateness import refresh_penalties
from .points import class_points
from .students import students


def class_rows(book: CourseGradebook, assignment: str, fresh: Iterable[Record] = ()) -> list[Row]:
    """The rows of a class, sorted by student, after computing late penalties again.

    fresh: records of this run; they are newer than stored ones, or can't be stored.
    """
    refresh_penalties(book, assignment)
    points = class_points(book, assignment)
    store = Store(book.course, secret(book.course))
    people = {person.id: person for person in students(book).people}
    records = {record.student: record for record in fresh}
    for student in {*store.students(assignment), *points, *people} - set(records):
        if (record := store.load(assignment, student)) is not None:
            records[student] = record
    return [
        Row(people.get(student, Person(student)), records.get(student), points.get(student))
        for student in sorted({*records, *points, *people})
    ]
