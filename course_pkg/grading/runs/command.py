"""The command `course grade`: run, show progress, print a summary, return an exit code.

Errors go to `course_pkg.exits`, which gives them their exit codes.

Chapter: appendix/for-instructors.
"""

import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..cluster.address import AddressError, scheduler_of
from ..feedback import class_report
from . import grader, progress
from .options import Options, RunLimits, Scheduler


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
    scheduler: Scheduler | None = None,
) -> Options:
    """The command line's options. memory, gpu_memory: GB. Times: seconds. jobs: None for cores + 2.

    gpu_jobs, gpu_memory: None for all GPUs, and for all of a GPU's memory. scheduler: None for this
    machine. Raises AddressError for an option that a cluster has no use for.
    """
    if scheduler is not None:
        asked = {"--jobs": jobs, "--gpu-jobs": gpu_jobs, "--unsafe-no-sandbox": unsafe or None}
        if others := [name for name, value in asked.items() if value is not None]:
            raise AddressError(
                f"{' and '.join(others)} is for this machine, not for --scheduler: each worker "
                "runs as many submissions as it has threads, in sandboxes"
            )
    limits = RunLimits(
        time_limit_s=time_limit,
        cell_timeout_s=min(cell_timeout, time_limit),
        memory_bytes=int(memory * 1e9),
        sandboxed=not unsafe,
        gpu_bytes=None if gpu_memory is None else int(gpu_memory * 1e9),
    )
    jobs = jobs or min(32, len(os.sched_getaffinity(0)) + 2)  # two more, as some wait
    given = submitted, jobs, limits, tuple(students), regrade, layout, roster, gpu_jobs, scheduler
    return Options(*given)


def cluster(
    address: str | None, ca: Path | None, certificate: Path | None, key: Path | None
) -> Scheduler | None:
    """The scheduler of --scheduler and the TLS options; None without. Raises AddressError."""
    if address is None:
        if ca or certificate or key:
            raise AddressError("--tls-ca, --tls-cert and --tls-key are for --scheduler")
        return None
    return scheduler_of(address, ca, certificate, key)


def run(course: Path, assignment: str, options: Options) -> int:
    """Grade an assignment, print progress and a summary; the exit code.

    Raises what `grader.grade` raises, and KeyboardInterrupt for SIGTERM.
    """
    if not options.limits.sandboxed:
        print("WARNING: no sandbox. Submissions run with all your rights.", file=sys.stderr)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _interrupt)
    gc.set_threshold(50_000, 20, 50)  # the usual 700 costs a tenth of this process's time
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 2**16), most))
    with progress.ProgressDisplay() as show:
        records = grader.grade(course, assignment, options, show)
    waiting = class_report.waiting_points(course, assignment)
    progress.print_summary(records, time.monotonic() - began, show.graded, waiting)
    print(f"grades and reports: {class_report.folder(assignment)}/")
    if late := class_report.late_note(course, assignment):
        print(f"late: {late}")
    return grader.exit_code(records)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
