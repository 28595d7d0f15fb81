"""Record what a submission's grading gave: in nbgrader's gradebook first, then signed.

Chapter: appendix/for-instructors.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from nbformat import NotebookNode

from course_pkg.common.files import disk_is_full
from course_pkg.grading.classroom.gradebook.class_rows import class_points
from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook
from course_pkg.grading.classroom.gradebook.lateness import late_without_time, set_timestamp
from course_pkg.grading.classroom.gradebook.students import students
from course_pkg.grading.classroom.results.record import Record, State
from course_pkg.grading.classroom.results.store import Store
from course_pkg.grading.classroom.submissions.names import valid_student
from course_pkg.grading.classroom.submissions.submission import Submission

KEPT = "it was not graded again, because there is no GPU: this is its earlier score"
EARLIER = "the gradebook still has the score of an earlier submission"
NO_TIME = "Moodle's zip doesn't say when it was submitted: give the grading worksheet with --roster"
Failed = Callable[[Submission, str], Record]  # the record of a failure of the grader, with why


@dataclass(frozen=True)
class Graded:
    """A submission's record, with the notebook (None if it was not run) and the files to keep."""

    record: Record
    notebook: NotebookNode | None = None
    files: dict[str, bytes] = field(default_factory=dict)


class Recorder:
    """Records the results of one run. points: of the gradebook, by student, before the run."""

    def __init__(
        self, assignment: str, book: CourseGradebook, store: Store, failed: Failed
    ) -> None:
        self.assignment = assignment
        self.book = book
        self.store = store
        self.failed = failed
        self.points = class_points(book, assignment)
        self._due = late_without_time(book, assignment) is not None
        self._students = {person.id for person in students(book).people}

    def write(self, submission: Submission, graded: Graded) -> Record:
        """Write the gradebook, then the record; if the student's id is impossible, write nothing.

        A refused submission adds nobody to the gradebook, and one that waits changes nothing there.
        What can't be written is the grader's failure, for this submission alone. Raises OSError if
        the disk is full.
        """
        if not valid_student(submission.student):
            return graded.record
        began = time.monotonic()
        try:
            before = self.store.load(self.assignment, submission.student)
            record = graded.record
            if not submission.trusted:
                submission = replace(
                    submission, timestamp=self._timestamp(submission, before, record)
                )
            if submission.timestamp is None and submission.layout == "moodle" and self._due:
                record = replace(record, remarks=(*record.remarks, NO_TIME))
            if record.state == State.WAITING:
                return self._wait(submission, before, record)
            graded = replace(graded, record=record)
            self.store.forget(self.assignment, submission.student)
            if record.state != State.REFUSED or submission.student in self._students:
                record = self._in_gradebook(submission, graded)
            record = replace(record, write_s=round(time.monotonic() - began, 3))
            self.store.save(record)
            return record
        except (OSError, ValueError) as error:
            if disk_is_full(error):  # every other submission would fail too: the run ends here
                raise
            return self.failed(submission, f"its record could not be written ({error})")

    def _wait(self, submission: Submission, before: Record | None, record: Record) -> Record:
        """Store that a submission waits; if the same files have a score, that stays instead."""
        known = submission.student in self.points
        if before and known and before.state.has_score and before.files == record.files:
            self.update_time(submission)
            return replace(before, remarks=(*before.remarks, KEPT))
        when = submission.timestamp
        record = replace(
            record,
            remarks=(*record.remarks, *([EARLIER] if known else [])),
            submitted="" if when is None else when.isoformat(),
        )
        self.store.save(record)
        return record

    def update_time(self, submission: Submission) -> None:
        """Write a newly known time of a submission that need not be graded again."""
        points = self.points.get(submission.student)
        if submission.trusted and points and points.submitted != submission.timestamp:
            set_timestamp(self.book, self.assignment, submission.student, submission.timestamp)

    def _timestamp(
        self, submission: Submission, before: Record | None, record: Record
    ) -> datetime | None:
        """When the same files were submitted, if an earlier run knew it, else the files' time."""
        points = self.points.get(submission.student)
        earlier = points.submitted if points else None
        if before and before.state == State.WAITING:  # the gradebook knows at most an earlier one
            earlier = datetime.fromisoformat(before.submitted) if before.submitted else None
        files = before.files if before else ""
        known = files and record.files
        same = files == record.files if known else submission.timestamp is None
        return earlier if same and earlier else submission.timestamp

    def _in_gradebook(self, submission: Submission, graded: Graded) -> Record:
        """Write to the gradebook; what can't be written as it is, is written as our failure."""
        last = (submission.timestamp, submission.person)
        try:
            self.book.write(graded.record, graded.notebook, graded.files, *last)
            return graded.record
        except (OSError, ValueError) as error:
            if disk_is_full(error):  # the earlier score stays
                raise
            reason = f"it could not be written ({type(error).__name__}: {error})"
            record = self.failed(submission, reason)
            self.book.write(record, None, {}, *last)
            return record
