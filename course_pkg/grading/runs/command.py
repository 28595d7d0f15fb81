"""The command `course grade`: run, show progress, print a summary, return an exit code.

Errors go to `course_pkg.exits`, which gives them their exit codes.

Chapter: appendix/for-instructors.
"""

import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..feedback import class_report
from . import grader, progress
from .options import Options, RunLimits


def options(
    submitted: Path,
    jobs: int | None,
    time_limit: float,
    cell_timeout: float,
    memory: float,
    students: Sequence[str],
    regrade: bool,
    unsafe: bool,
    layout: str = "auto",
    roster: Path | None = None,
    gpu_jobs: int | None = None,
    gpu_memory: float | None = None,
) -> Options:
    """The command line's options. memory, gpu_memory: GB. Times: seconds. jobs: None for cores + 1.

    gpu_jobs, gpu_memory: None for all GPUs, and for all of a GPU's memory.
    """
    limits = RunLimits(
        time_limit_s=time_limit,
        cell_timeout_s=min(cell_timeout, time_limit),
        memory_bytes=int(memory * 1e9),
        sandboxed=not unsafe,
        gpu_bytes=None if gpu_memory is None else int(gpu_memory * 1e9),
    )
    jobs = jobs or min(32, len(os.sched_getaffinity(0)) + 1)  # one more, as some wait
    return Options(submitted, jobs, limits, tuple(students), regrade, layout, roster, gpu_jobs)


def run(course: Path, assignment: str, options: Options) -> int:
    """Grade an assignment, print progress and a summary; the exit code.

    Raises what `grader.grade` raises, and KeyboardInterrupt for SIGTERM.
    """
    if not options.limits.sandboxed:
        print("WARNING: no sandbox. Submissions run with all your rights.", file=sys.stderr)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _interrupt)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 2**16), most))
    with progress.ProgressDisplay() as show:
        records = grader.grade(course, assignment, options, show)
    progress.print_summary(records, time.monotonic() - began, show.graded)
    print(f"grades and reports: {class_report.folder(assignment)}/")
    if late := class_report.late_note(course, assignment):
        print(f"late: {late}")
    return grader.exit_code(records)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
