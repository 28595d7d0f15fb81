"""Grade a folder of submissions: records, nbgrader's gradebook, and the report on the class.

Only `grade` reads the secret and writes the gradebook. A result is stored under a key that covers
all it depends on: a run that was interrupted continues where it stopped, and a second run over the
same submissions grades nothing.

Chapter: appendix/for-instructors.
"""

from pathlib import Path

from course_pkg.sandbox.probe import probe

from ..contract import registry
from ..feedback import class_report
from ..gradebook.gradebook import CourseGradebook
from ..results.keys import course_lock
from ..results.records import Record
from ..results.states import State
from ..submissions.collect import collect
from .batch import Batch
from .grade_submission import ForkServers
from .options import NoSandbox, Options
from .progress import ProgressDisplay


def grade(course: Path, assignment: str, options: Options, show: ProgressDisplay) -> list[Record]:
    """Grade every submission to an assignment; the records, sorted by the students' ids.

    course: the folder that holds nbgrader_config.py, exercises/ and solutions/. Raises NoSandbox,
    UnknownQuestion for the assignment, SourceError for the submissions, and GradingFolderError,
    GradebookError or ReleaseError for the course's own files; never for a student's files.
    """
    registry.load(assignment)  # fail early if there is no such assignment
    if options.limits.sandboxed and not (state := probe()).ok:
        raise NoSandbox(state)
    with (
        course_lock(course, f"course grade {assignment}"),
        ForkServers(assignment, course, options.limits) as servers,
        CourseGradebook(course) as book,
    ):
        everyone = collect(options.submitted, assignment)
        chosen = everyone
        if options.students:
            chosen = collect(options.submitted, assignment, options.students)
        show.expect(len(chosen))
        batch = Batch(course, assignment, options, book, servers)
        records, waiting = {}, []
        for number, submission in enumerate(chosen):
            known = None if options.regrade else batch.known(submission)
            if known is None:
                waiting.append((number, submission))
            else:
                records[number] = known
                show.finished(known)
        for number, record in batch.run(waiting, show):
            records[number] = record
        found = [records[number] for number in sorted(records)]
        present = {submission.student for submission in everyone}
        latest = class_report.current(batch.store, assignment, present, found)
        class_report.write(course, assignment, latest, book.to_mark(assignment))
    return found


def exit_code(records: list[Record]) -> int:
    """The exit code of a run: 0 all graded, 1 some need a look, 4 the grader failed on some.

    >>> exit_code([])
    0
    """
    states = {record.state for record in records}
    if State.GRADING_ERROR in states:
        return 4
    return int(bool(states - {State.GRADED}))
