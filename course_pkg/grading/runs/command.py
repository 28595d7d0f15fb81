"""What `course grade` does with its options: run, show, sum up, and say how it ended in a code.

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

from course_pkg.sandbox.policy import MIB
from course_pkg.sandbox.walls import SandboxFailed

from ..contract.registry import UnknownQuestion
from ..feedback import class_report
from ..gradebook.gradebook import GradebookError
from ..gradebook.release import ReleaseError
from ..results.keys import GradingFolderError
from ..submissions.collect import SourceError
from . import grader, progress
from .options import NoSandbox, Options, RunLimits

INSTALL = (
    "Hand-ins are run only where they can be confined. Mend that, grade on another Linux machine, "
    "or, if you would run every hand-in with your own rights, add --unsafe-no-sandbox."
)

REFUSALS = (GradebookError, GradingFolderError, ReleaseError, SourceError, UnknownQuestion)


def options(
    submitted: Path,
    jobs: int | None,
    time_limit: float,
    cell_timeout: float,
    memory: float,
    students: Sequence[str],
    regrade: bool,
    unsafe: bool,
) -> Options:
    """Options of the command line. memory: in GB; times in seconds; jobs: None for cores + 1."""
    limits = RunLimits(
        time_limit_s=time_limit,
        cell_timeout_s=min(cell_timeout, time_limit),
        memory_bytes=int(memory * 1024 * MIB),
        sandboxed=not unsafe,
    )
    jobs = jobs or min(32, len(os.sched_getaffinity(0)) + 1)  # one may wait while others compute
    return Options(submitted, jobs, limits, tuple(students), regrade)


def run(course: Path, assignment: str, options: Options) -> int:
    """Grade, show how it goes on, and give the exit code."""
    if not options.limits.sandboxed:
        print("WARNING: no sandbox. Hand-ins run with all your rights.", file=sys.stderr)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _interrupt)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 2**16), most))
    try:
        with progress.ProgressDisplay() as show:
            records = grader.grade(course, assignment, options, show)
    except NoSandbox as error:
        return _said(f"no sandbox: {error}\n{INSTALL}", 3)
    except (
        GradebookError,
        ReleaseError,
        SourceError,
        UnknownQuestion,
        GradingFolderError,
    ) as error:
        return _said(f"error: {error}", 2)
    except KeyboardInterrupt:
        return _said("interrupted; the same command goes on where this one stopped", 130)
    except (SandboxFailed, OSError) as error:
        return _said(f"the grader failed: {error}", 4)
    except Exception:  # or Python would end with 1, which says that everyone has a score
        traceback.print_exc()
        return _said("the grader failed, by a fault of its own", 4)
    progress.print_summary(records, time.monotonic() - began, show.graded)
    print(f"grades and reports: {class_report.folder(assignment)}/")
    return grader.trouble(records)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _said(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code
