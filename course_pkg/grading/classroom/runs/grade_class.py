"""Grade a folder of submissions: records, nbgrader's gradebook, and the report on the class.

A result is stored under a key that covers all it depends on: a run that was interrupted continues
where it stopped, and a second run over the same submissions grades nothing.
"""

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from course_pkg.common.scheduler_address import SchedulerAddress
from course_pkg.grading.classroom.execution.assignment import ClassAssignment
from course_pkg.grading.classroom.execution.local_executor import LocalExecutor
from course_pkg.grading.classroom.execution.runner_output import NoSandbox, RunLimits
from course_pkg.grading.classroom.feedback import class_report
from course_pkg.grading.classroom.gradebook.class_rows import class_rows
from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook
from course_pkg.grading.classroom.gradebook.keys import course_lock
from course_pkg.grading.classroom.gradebook.nbgrader_api import find_assignment
from course_pkg.grading.classroom.gradebook.record import Record, without_words
from course_pkg.grading.classroom.gradebook.students import save_roster, students, with_known_ids
from course_pkg.grading.classroom.runs.batch import Batch
from course_pkg.grading.classroom.runs.progress import ProgressDisplay
from course_pkg.grading.classroom.submissions.collect import Submission, collect
from course_pkg.grading.classroom.submissions.roster import read_roster
from course_pkg.sandbox.probe import probe

if TYPE_CHECKING:
    from course_pkg.grading.classroom.cluster.cluster_executor import ClusterExecutor


@dataclass(frozen=True)
class Options:
    """How to grade, as the options of `course grade` say.

    Attributes:
        students: grade only these; empty for all.
        gpu_jobs: GPUs to use at most, one submission on each; None for all.
        scheduler: of the cluster that runs the submissions; None for this machine.
    """

    submitted: Path
    jobs: int = 1
    limits: RunLimits = field(default_factory=RunLimits)
    students: tuple[str, ...] = ()
    regrade: bool = False
    layout: str = "auto"
    roster: Path | None = None
    gpu_jobs: int | None = None
    scheduler: SchedulerAddress | None = None


def grade(course: Path, name: str, options: Options, show: ProgressDisplay) -> list[Record]:
    """Grade every submission to an assignment; the records `without_words`, sorted by student.

    Where the assignment needs a GPU and there is none, nothing runs, and the submissions wait. No
    student's file raises anything. NoSandbox, UnknownQuestion and SourceError are raised before
    anything is written.

    Args:
        course: the folder that holds nbgrader_config.py, exercises/ and solutions/.
    """
    assignment = find_assignment(course, name)
    limits = options.limits
    cell_s = min(max(limits.cell_timeout_s, assignment.cell_s), limits.time_limit_s)
    options = replace(options, limits=replace(limits, cell_timeout_s=cell_s))
    if options.limits.sandboxed and not (state := probe()).ok:
        raise NoSandbox(state)
    roster = read_roster(options.roster) if options.roster else None
    for _, why in roster.refused if roster else ():
        show.warn(f"not graded: {why}")
    everyone = collect(options.submitted, name, layout=options.layout)  # writes nothing
    show.expect(len(set(options.students)) or len(everyone))
    with (
        course_lock(course, f"course grade {name}"),
        executor(course, assignment, options, show) as runs,
        CourseGradebook(course) as book,
        book.grading(name),
    ):
        known = students(book)
        who = known if roster is None else with_known_ids(roster, known)
        asked = (options.submitted, name, options.students, options.layout, who)
        chosen = collect(*asked, say=show.note)
        if options.roster:
            save_roster(book, who)
        batch = Batch(course, assignment, options.limits, book, runs)
        records = {}
        waiting = []
        for number, submission in enumerate(with_lateness(book, name, chosen)):
            known = None if options.regrade else batch.known(submission)
            if known is None:
                waiting.append((number, submission))
            else:
                batch.recorder.update_time(submission)
                records[number] = without_words(known)
                show.finished(known)
        for number, record in batch.run(waiting, show):
            records[number] = without_words(record)
        ordered = [records[number] for number in sorted(records)]
        class_report.write(course, name, class_rows(book, name, ordered))
        for one, other in students(book).doubles():
            show.note(
                f"{one.id} and {other.id} may be one person: if so, `course rename-student "
                f"{shlex.quote(one.id)} {shlex.quote(other.id)}`"
            )
    return ordered


def executor(
    course: Path, assignment: ClassAssignment, options: Options, show: ProgressDisplay
) -> "LocalExecutor | ClusterExecutor":
    """Where the submissions run: on the cluster of `options`, else on this machine."""
    if options.scheduler is None:
        jobs = options.jobs
        return LocalExecutor(assignment, course, options.limits, jobs, options.gpu_jobs)
    from course_pkg.grading.classroom.cluster.cluster_executor import ClusterExecutor

    return ClusterExecutor(assignment, options.limits, options.scheduler, show.note)


def with_lateness(
    book: CourseGradebook, assignment: str, submissions: list[Submission]
) -> list[Submission]:
    """The submissions; those that Canvas calls late, without a time, get one after the due date."""
    when = book.late_without_time(assignment)
    if when is None:
        return submissions
    return [
        replace(one, timestamp=when, trusted=True) if one.late and one.timestamp is None else one
        for one in submissions
    ]
