"""The command `course grade`: run, show progress, print a summary, return an exit code.

Chapter: appendix/for-instructors.
"""

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from course_pkg.sandbox.namespaces import SandboxFailed

from ..contract.registry import UnknownQuestion
from ..feedback import class_report
from ..gradebook.gradebook import GradebookError
from ..gradebook.release import ReleaseError
from ..results.keys import GradingFolderError
from ..submissions.collect import SourceError
from ..submissions.roster import RosterError
from . import grader, progress
from .options import NoSandbox, Options, RunLimits

INSTALL = (
    "Submissions run only in a sandbox. Fix that, or grade on another Linux machine. If you trust "
    "every submission as you trust your own code, add --unsafe-no-sandbox."
)

REFUSALS = (
    GradebookError,
    GradingFolderError,
    ReleaseError,
    RosterError,
    SourceError,
    UnknownQuestion,
)


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
) -> Options:
    """The command line's options. memory: GB. Times: seconds. jobs: None for cores + 1."""
    limits = RunLimits(
        time_limit_s=time_limit,
        cell_timeout_s=min(cell_timeout, time_limit),
        memory_bytes=int(memory * 1e9),
        sandboxed=not unsafe,
    )
    jobs = jobs or min(32, len(os.sched_getaffinity(0)) + 1)  # one more, as some wait
    return Options(submitted, jobs, limits, tuple(students), regrade, layout, roster)


def run(course: Path, assignment: str, options: Options) -> int:
    """Grade an assignment, print progress and a summary; the exit code."""
    if not options.limits.sandboxed:
        print("WARNING: no sandbox. Submissions run with all your rights.", file=sys.stderr)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _interrupt)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 2**16), most))
    try:
        with progress.ProgressDisplay() as show:
            records = grader.grade(course, assignment, options, show)
    except NoSandbox as error:
        return _fail(f"no sandbox: {error}\n{INSTALL}", 3)
    except REFUSALS as error:
        return _fail(f"error: {error}", 2)
    except KeyboardInterrupt:
        return _fail("interrupted; run the same command again to continue", 130)
    except (SandboxFailed, OSError) as error:
        return _fail(f"the grader failed: {error}", 4)
    except Exception:  # else Python would exit with 1, which means that everyone has a score
        traceback.print_exc()
        return _fail("the grader failed because of a bug in it", 4)
    progress.print_summary(records, time.monotonic() - began, show.graded)
    print(f"grades and reports: {class_report.folder(assignment)}/")
    if late := class_report.late_note(course, assignment):
        print(f"late: {late}")
    return grader.exit_code(records)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _fail(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code
