"""From a folder of hand-ins to scores in the gradebook, none left without a state.

`grade` is the only one who holds the secret and writes the gradebook. A result is kept under the
address of all that it depends on, so a run that was broken off goes on where it stopped, and a run
over what is graded already does nothing.

Chapter: appendix/for-instructors.
"""

from pathlib import Path

from course_pkg.sandbox.probe import probe

from ..contract import registry
from ..feedback import class_report
from ..gradebook.gradebook import CourseGradebook
from ..results.keys import lock
from ..results.records import Record
from ..results.states import State
from ..submissions.collect import collect
from .batch import Batch
from .grade_submission import ForkServers
from .options import NoSandbox, Options
from .progress import ProgressDisplay


def grade(course: Path, assignment: str, options: Options, show: ProgressDisplay) -> list[Record]:
    """Grade every hand-in of an assignment; the records in the order of the students' ids.

    course: the folder that holds nbgrader_config.py, exercises/ and solutions/. Raises NoSandbox,
    UnknownQuestion for the assignment, SourceError for the submissions, and GradingFolderError,
    GradebookError or ReleaseError for the course's own files; never for what a student handed in.
    """
    registry.ask_module(assignment)  # that there is one; what is slow to import waits
    if options.limits.sandboxed and not (state := probe()).ok:
        raise NoSandbox(state)
    with (
        lock(course, f"course grade {assignment}"),
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


def trouble(records: list[Record]) -> int:
    """The exit code for a run's records: 0 all graded, 1 some to look at, 4 the grader failed.

    >>> trouble([])
    0
    """
    states = {record.state for record in records}
    if State.GRADING_ERROR in states:
        return 4
    return int(bool(states - {State.GRADED}))
