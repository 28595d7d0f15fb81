"""Grade a folder of submissions: records, nbgrader's gradebook, and the report on the class.

Only `grade` reads the secret and writes the gradebook. A result is stored under a key that covers
all it depends on: a run that was interrupted continues where it stopped, and a second run over the
same submissions grades nothing.

Chapter: appendix/for-instructors.
"""

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from course_pkg.sandbox.probe import probe

from ..contract import registry
from ..feedback import class_report
from ..gradebook.class_rows import class_rows
from ..gradebook.gradebook import CourseGradebook
from ..gradebook.lateness import late_without_time
from ..gradebook.students import save_roster, students
from ..results.keys import course_lock
from ..results.records import Record, without_words
from ..results.states import State
from ..submissions.collect import collect
from ..submissions.read_roster import read_roster
from ..submissions.submission import Submission
from .batch import Batch
from .course_folder import require_assignment
from .executor import Executor, LocalExecutor
from .options import NoSandbox, Options, RunLimits
from .progress import ProgressDisplay


def grade(course: Path, assignment: str, options: Options, show: ProgressDisplay) -> list[Record]:
    """Grade every submission to an assignment; the records, sorted by the students' ids.

    The records are those of `without_words`; the stored ones have everything.
    course: the folder that holds nbgrader_config.py, exercises/ and solutions/. Raises NoSandbox,
    UnknownQuestion for the assignment and SourceError for the submissions, before it writes
    anything; GradingFolderError, GradebookError or ReleaseError for the course's own files; never
    for a student's files. Where the assignment needs a GPU and there is none, nothing runs, and
    the submissions wait.
    """
    require_assignment(course, assignment)
    options = replace(options, limits=with_cells(options.limits, assignment))
    if options.limits.sandboxed and not (state := probe()).ok:
        raise NoSandbox(state)
    roster = read_roster(options.roster) if options.roster else None
    for _, why in roster.refused if roster else ():
        show.note(f"not graded: {why}")
    everyone = collect(options.submitted, assignment, layout=options.layout)  # writes nothing
    show.expect(len(set(options.students)) or len(everyone))
    with (
        course_lock(course, f"course grade {assignment}"),
        executor(course, assignment, options, show) as runs,
        CourseGradebook(course) as book,
        book.grading(assignment),
    ):
        known_students = students(book) if roster is None else roster
        chosen = collect(
            options.submitted, assignment, options.students, options.layout, known_students
        )
        if options.roster:
            save_roster(book, roster)
        batch = Batch(course, assignment, options, book, runs)
        chosen = with_lateness(book, assignment, chosen)
        records, waiting = {}, []
        for number, submission in enumerate(chosen):
            known = None if options.regrade else batch.known(submission)
            if known is None:
                waiting.append((number, submission))
            else:
                batch.writer.update_time(submission)
                records[number] = without_words(known)
                show.finished(known)
        for number, record in batch.run(waiting, show):
            records[number] = without_words(record)
        found = [records[number] for number in sorted(records)]
        class_report.write(course, assignment, class_rows(book, assignment, found))
    return found


def executor(
    course: Path, assignment: str, options: Options, show: ProgressDisplay
) -> AbstractContextManager[Executor]:
    """Where the submissions run: on the cluster of `options`, else on this machine."""
    if options.scheduler is None:
        jobs = options.jobs
        return LocalExecutor(assignment, course, options.limits, jobs, options.gpu_jobs)
    from ..cluster.executor import ClusterExecutor

    return ClusterExecutor(assignment, options.limits, options.scheduler, show.note)


def with_cells(limits: RunLimits, assignment: str) -> RunLimits:
    """The limits, with the longer time for a cell that the assignment may ask for.

    >>> with_cells(RunLimits(), "lora-script").cell_timeout_s
    240.0
    """
    asked = registry.load(assignment).cell_s if registry.has_checks(assignment) else 0.0
    seconds = min(max(limits.cell_timeout_s, asked), limits.time_limit_s)
    return replace(limits, cell_timeout_s=seconds)


def with_lateness(
    book: CourseGradebook, assignment: str, submissions: list[Submission]
) -> list[Submission]:
    """The submissions; those that Canvas calls late, without a time, get one after the due date."""
    when = late_without_time(book, assignment)
    return [
        replace(one, timestamp=when, trusted=True)
        if when and one.late and one.timestamp is None
        else one
        for one in submissions
    ]


def exit_code(records: list[Record]) -> int:
    """The exit code of a run: 0 all graded, 1 some need a look or a GPU, 4 the grader failed.

    >>> exit_code([])
    0
    """
    states = {record.state for record in records}
    if State.GRADING_ERROR in states:
        return 4
    return int(bool(states - {State.GRADED}))
