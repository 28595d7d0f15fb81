"""The exit codes of the `course` commands: the same fault has the same code in each of them.

0: done. 1: done, and something needs a look. 2: the request is not possible as it is. 3: no sandbox
on this machine. 4: the program failed, or the machine did. 130: interrupted.

Chapter: setup.
"""

import sys
import traceback
from typing import Any

import typer
from typer.core import TyperGroup

from course_pkg.files import disk_is_full

NEEDS_A_LOOK = 1
REQUEST = 2
NO_SANDBOX = 3
FAILED = 4
INTERRUPTED = 130
DISK_FULL = (
    "the disk is full ({error}): free some space, and run the same command again; what was "
    "finished before is kept"
)
INSTALL = (
    "Submissions run only in a sandbox. Fix that, or grade on another Linux machine. If you trust "
    "every submission as you trust your own code, add --unsafe-no-sandbox."
)


class Commands(TyperGroup):
    """The command line's commands, whose errors end in one line and an exit code."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with whole summaries; narrow terminals get several lines for one."""
        whole = 1000  # characters; more than any summary has
        rows = [(name, each.get_short_help_str(whole)) for name, each in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error becomes its message on stderr and its exit code."""
        try:
            return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, typer.Abort) or hasattr(error, "exit_code"):
                raise  # typer's own: bad options, and the codes that commands give
            code, text = explained(error)
            if text is None:
                traceback.print_exception(error)
                text = f"`course {ctx.invoked_subcommand}` failed because of a bug in it"
            print(text, file=sys.stderr)
            raise typer.Exit(code) from None


def explained(error: BaseException) -> tuple[int, str | None]:
    """The exit code of an error, and what to print; None for a bug.

    >>> explained(KeyboardInterrupt())[0], explained(PermissionError(13, "denied", "/x"))[0]
    (130, 4)
    """
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted; run the same command again to continue"
    if disk_is_full(error) or "disk is full" in str(error):
        return FAILED, "error: " + DISK_FULL.format(error=error)
    from course_pkg.classroom.execution.runner_output import NoSandbox

    if isinstance(error, NoSandbox):
        return NO_SANDBOX, f"no sandbox: {error}\n{INSTALL}"
    if isinstance(error, _failures()):
        return FAILED, f"error: {error}"
    if isinstance(error, _requests()):
        return REQUEST, f"error: {error}"
    return FAILED, None


def _requests() -> tuple[type[BaseException], ...]:
    """Errors in what was asked for, or in the files that it needs."""
    from course_pkg.classroom.cluster.address import AddressError
    from course_pkg.classroom.gradebook.nbgrader_api import GradebookError
    from course_pkg.classroom.release import ReleaseError
    from course_pkg.classroom.results.keys import GradingFolderError
    from course_pkg.classroom.submissions.collect import SourceError
    from course_pkg.classroom.submissions.roster import RosterError
    from course_pkg.deployment.api_errors import ServeError
    from course_pkg.evaluation.run_errors import RunError, TaskError
    from course_pkg.grading.contract.questions import ChecksError
    from course_pkg.grading.contract.registry import UnknownQuestion
    from course_pkg.grading.own_notebook import NotebookError
    from course_pkg.lm.model_errors import ModelError
    from course_pkg.metrics.text_files import TextFileError

    files = (GradebookError, GradingFolderError, ReleaseError, RosterError, SourceError)
    names = (AddressError, ChecksError, ModelError, NotebookError, UnknownQuestion)
    return *files, *names, RunError, ServeError, TaskError, TextFileError


def _failures() -> tuple[type[BaseException], ...]:
    """Errors of the machine, or of a program that was started."""
    from course_pkg.classroom.execution.local_executor import ExecutorLost
    from course_pkg.classroom.gradebook.nbgrader_api import GradebookLost
    from course_pkg.classroom.runs.sample_class import GradingFailed
    from course_pkg.evaluation.run_errors import ServerError
    from course_pkg.sandbox.namespaces import SandboxFailed

    return ExecutorLost, GradebookLost, GradingFailed, OSError, SandboxFailed, ServerError
