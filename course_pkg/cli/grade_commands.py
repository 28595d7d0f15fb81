"""The commands of `course` that grade: grade and sample-class."""

import gc
import os
import resource
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from course_pkg.cli.exits import FAILED, NEEDS_A_LOOK, NO_SANDBOX
from course_pkg.cli.scheduler_options import TlsCa, TlsCert, TlsKey, scheduler_of_options

if TYPE_CHECKING:
    from course_pkg.common.scheduler_address import SchedulerAddress
    from course_pkg.grading.classroom.gradebook.record import Record
    from course_pkg.grading.classroom.runs.grade_class import Options


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (grade, sample_class):
        app.command()(command)


def grade(
    assignment: Annotated[str, typer.Argument(help="The assignment, such as lora-math.")],
    submitted: Annotated[
        Path, typer.Option(help="Folder or zip of submissions; README.md has the layouts.")
    ] = Path("submitted"),
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=32, help="Submissions to grade at once [default: cores + 2]"),
    ] = None,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds per submission.")] = 600,
    cell_timeout: Annotated[float, typer.Option(min=1, help="Seconds per cell.")] = 120,
    memory: Annotated[float, typer.Option(min=0.5, help="GB per submission.")] = 4,
    max_output: Annotated[
        float, typer.Option(min=0.1, help="MB per submission that its cells may put out.")
    ] = 8,
    gpu_jobs: Annotated[
        int | None,
        typer.Option(min=0, max=32, help="GPUs to use, one submission on each [default: all]"),
    ] = None,
    gpu_memory: Annotated[
        float | None, typer.Option(min=0.5, help="GB of a GPU per submission [default: all]")
    ] = None,
    student: Annotated[
        list[str] | None, typer.Option(help="Grade only this student; repeatable.")
    ] = None,
    layout: Annotated[
        str, typer.Option(help="Of the submissions: auto, nbgrader, flat, moodle or canvas.")
    ] = "auto",
    roster: Annotated[
        Path | None,
        typer.Option(help="CSV of the class: your own, Moodle's worksheet or Canvas's gradebook."),
    ] = None,
    regrade: Annotated[
        bool, typer.Option("--regrade", help="Grade again what has a grade.")
    ] = False,
    unsafe_no_sandbox: Annotated[
        bool, typer.Option("--unsafe-no-sandbox", help="Run submissions with YOUR permissions.")
    ] = False,
    scheduler: Annotated[
        str | None, typer.Option(help="Run submissions on a Dask cluster: tls://HOST:PORT.")
    ] = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Grade submissions, each in a separate sandbox.

    Run this in the course's folder. Exit code 0: every submission is graded. 1: every submission
    was processed; look at those that the summary names, and at those that wait for a GPU. 2: the
    arguments or files are not usable. 3: this machine can't sandbox submissions, so none was run.
    4: the grader, the machine or the cluster failed; run the command again. 130: interrupted; run
    the command again to continue.
    """
    from course_pkg.grading.classroom.execution.runner_output import RunLimits
    from course_pkg.grading.classroom.runs.grade_class import Options
    from course_pkg.grading.classroom.submissions.layouts import LAYOUTS

    if layout not in LAYOUTS:
        raise typer.BadParameter(
            f"{layout!r}; expected {', '.join(LAYOUTS)}", param_hint="--layout"
        )
    for_this_machine = []
    if jobs is not None:
        for_this_machine.append("--jobs")
    if gpu_jobs is not None:
        for_this_machine.append("--gpu-jobs")
    if unsafe_no_sandbox:
        for_this_machine.append("--unsafe-no-sandbox")
    options = Options(
        submitted,
        jobs=jobs or min(32, len(os.sched_getaffinity(0)) + 2),  # two more, as some wait
        limits=RunLimits(
            time_limit_s=time_limit,
            cell_timeout_s=min(cell_timeout, time_limit),
            memory_bytes=int(memory * 1e9),
            output_bytes=int(max_output * 1e6),
            sandboxed=not unsafe_no_sandbox,
            gpu_bytes=None if gpu_memory is None else int(gpu_memory * 1e9),
        ),
        students=tuple(student or ()),
        regrade=regrade,
        layout=layout,
        roster=roster,
        gpu_jobs=gpu_jobs,
        scheduler=_scheduler(scheduler, tls_ca, tls_cert, tls_key, for_this_machine),
    )
    if unsafe_no_sandbox:
        typer.echo("WARNING: no sandbox. Submissions run with all your rights.", err=True)
    raise typer.Exit(run(Path.cwd(), assignment, options))


def sample_class(
    into: Annotated[Path, typer.Option(help="The folder for the class.")] = Path("_build/class"),
    every: Annotated[
        bool, typer.Option("--all", help="Grade every assignment, not four of them.")
    ] = False,
) -> None:
    """Grade a sample class of four students.

    They submit all answers, half of them, none, and a broken file. Run this in the course's
    folder. Exit code 0 if the class was graded; 3 if this machine can't grade (the command then
    says why and writes no grades.csv); 4 if grading failed.
    """
    from course_pkg.grading.classroom.feedback import class_report
    from course_pkg.grading.classroom.runs import sample_class as sample
    from course_pkg.grading.classroom.runs.progress import ProgressDisplay
    from course_pkg.grading.classroom.runs.run_summary import summary
    from course_pkg.sandbox.probe import probe

    if not (state := probe()).ok:
        typer.echo(f"grading skipped: {state.detail}; {state.fix}")
        raise typer.Exit(NO_SANDBOX)
    assignments = sample.build(Path.cwd(), into, every=every)
    with ProgressDisplay() as show:
        graded = sample.grade(into, assignments, show)
    for assignment, records in graded.items():
        waiting = class_report.waiting_points(into, assignment)
        show.console.print(summary(records, 0, waiting=waiting))
    typer.echo(f"grades: {into}/results/<assignment>/grades.csv   feedback: {into}/feedback")


def run(course: Path, assignment: str, options: "Options") -> int:
    """Grade an assignment, print progress and a summary; the exit code.

    Raises what `grade_class.grade` raises, and KeyboardInterrupt for SIGTERM.
    """
    from course_pkg.grading.classroom.feedback import class_report
    from course_pkg.grading.classroom.runs import grade_class
    from course_pkg.grading.classroom.runs.progress import ProgressDisplay
    from course_pkg.grading.classroom.runs.run_summary import summary

    began = time.monotonic()
    signal.signal(signal.SIGTERM, _interrupt)
    gc.set_threshold(50_000, 20, 50)  # the usual 700 costs a tenth of this process's time
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 2**16), most))
    with ProgressDisplay() as show:
        records = grade_class.grade(course, assignment, options, show)
    waiting = class_report.waiting_points(course, assignment)
    show.console.print(summary(records, time.monotonic() - began, show.graded, waiting))
    typer.echo(f"grades and reports: {class_report.folder(assignment)}/")
    if late := class_report.late_note(course, assignment):
        typer.echo(f"late: {late}")
    for text in show.warnings:
        typer.echo(text, err=True)
    return exit_code(records, show.warnings)


def exit_code(records: "Sequence[Record]", warnings: "Sequence[str]" = ()) -> int:
    """The exit code of a run: 0 all graded, 1 some need a look or a GPU, 4 the grader failed.

    Args:
        warnings: what else needs a look, such as students whom a roster confuses.
    """
    from course_pkg.grading.classroom.execution.runner_output import State

    states = {record.state for record in records}
    if State.GRADING_ERROR in states:
        return FAILED
    return NEEDS_A_LOOK if warnings or states - {State.GRADED} else 0


def _scheduler(
    address: str | None,
    ca: Path | None,
    certificate: Path | None,
    key: Path | None,
    for_this_machine: list[str],
) -> "SchedulerAddress | None":
    """The scheduler of the options; for_this_machine has those that a cluster has no use for."""
    from course_pkg.common.scheduler_address import AddressError

    if address is not None and for_this_machine:
        raise AddressError(
            f"{' and '.join(for_this_machine)} is for this machine, not for --scheduler: each "
            "worker runs as many submissions as it has threads, in sandboxes"
        )
    return scheduler_of_options(address, ca, certificate, key)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
