"""The rows of a whole class: everybody with a record, a submission or a line in the roster.

Chapter: appendix/for-instructors.
"""

from collections.abc import Iterable, Iterator

from ..feedback.row import Row
from ..results.keys import secret
from ..results.records import Record, with_words
from ..results.store import Store
from ..submissions.roster import Person
from .gradebook import CourseGradebook
from .lateness import refresh_penalties
from .points import class_points
from .students import students


def class_rows(
    book: CourseGradebook, assignment: str, fresh: Iterable[Record] = ()
) -> Iterator[Row]:
    """The rows of a class, sorted by student, after computing late penalties again.

    A row's record is read when its turn comes, so that memory does not grow with the class.
    fresh: records of this run, with words or without. They are newer than stored ones, or can't be
    stored.
    """
    refresh_penalties(book, assignment)
    points = class_points(book, assignment)
    store = Store(book.course, secret(book.course))
    people = {person.id: person for person in students(book).people}
    records = {record.student: record for record in fresh}
    for student in sorted({*store.students(assignment), *points, *people, *records}):
        record = stored = store.load(assignment, student)
        if student in records:
            record = with_words(records[student], stored)
        yield Row(people.get(student, Person(student)), record, points.get(student))
