"""The exit codes of the `course` commands: the same fault has the same code in each of them.

0: done. 1: done, and something needs a look. 2: the request is not possible as it is. 3: no sandbox
on this machine. 4: the program failed, or the machine did. 130: interrupted.

Chapter: setup.
"""

import os
import re
import select
import sys
import traceback
from importlib import metadata
from typing import Any

import typer
from typer.core import TyperGroup

from course_pkg.files import disk_is_full

NEEDS_A_LOOK = 1
REQUEST = 2
NO_SANDBOX = 3
FAILED = 4
INTERRUPTED = 130
DISTRIBUTION = "course-pkg"
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
            if isinstance(error, BrokenPipeError) and output_is_closed():
                raise typer.Exit(NEEDS_A_LOOK) from None
            code, text = explained(error)
            if text is None:
                traceback.print_exception(error)
                text = f"`course {ctx.invoked_subcommand}` failed because of a bug in it"
            print(text, file=sys.stderr)
            raise typer.Exit(code) from None


# Errors in what was asked for, or in the files that it needs.
REQUESTS = (
    "course_pkg.classroom.cluster.address.AddressError",
    "course_pkg.classroom.gradebook.nbgrader_api.GradebookError",
    "course_pkg.classroom.release.ReleaseError",
    "course_pkg.classroom.results.keys.GradingFolderError",
    "course_pkg.classroom.submissions.collect.SourceError",
    "course_pkg.classroom.submissions.roster.RosterError",
    "course_pkg.deployment.api_errors.ServeError",
    "course_pkg.deployment.chat_errors.ChatError",
    "course_pkg.evaluation.run_errors.RunError",
    "course_pkg.evaluation.run_errors.TaskError",
    "course_pkg.finetuning.own_data.errors.FinetuneError",
    "course_pkg.grading.contract.questions.ChecksError",
    "course_pkg.grading.contract.registry.UnknownQuestion",
    "course_pkg.grading.own_notebook.NotebookError",
    "course_pkg.lm.model_errors.ModelError",
    "course_pkg.metrics.text_files.TextFileError",
)
# Errors of the machine, or of a program that was started.
FAILURES = (
    "course_pkg.classroom.execution.local_executor.ExecutorLost",
    "course_pkg.classroom.gradebook.nbgrader_api.GradebookLost",
    "course_pkg.classroom.runs.sample_class.GradingFailed",
    "course_pkg.evaluation.run_errors.ServerError",
    "course_pkg.sandbox.namespaces.SandboxFailed",
)
SANDBOX = ("course_pkg.classroom.execution.runner_output.NoSandbox",)


def explained(error: BaseException) -> tuple[int, str | None]:
    """The exit code of an error, and what to print; None for a bug.

    >>> explained(KeyboardInterrupt())[0], explained(PermissionError(13, "denied", "/x"))[0]
    (130, 4)
    """
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted; run the same command again to continue"
    if disk_is_full(error) or "disk is full" in str(error):
        return FAILED, "error: " + DISK_FULL.format(error=error)
    if isinstance(error, ModuleNotFoundError) and (extra := extra_of(error.name)):
        return REQUEST, (
            f"error: this command needs {error.name}, which isn't installed: "
            f'python -m pip install "{DISTRIBUTION}[{extra}]"'
        )
    if isinstance(error, loaded(SANDBOX)):
        return NO_SANDBOX, f"no sandbox: {error}\n{INSTALL}"
    if isinstance(error, (OSError, *loaded(FAILURES))):
        return FAILED, f"error: {error}"
    if isinstance(error, loaded(REQUESTS)):
        return REQUEST, f"error: {error}"
    return FAILED, None


def output_is_closed() -> bool:
    """Whether nobody reads stdout any more, as after `| head -3`; what is left is then dropped."""
    try:
        stdout = sys.stdout.fileno()
    except (OSError, ValueError):  # not a file, as in tests
        return False
    poll = select.poll()
    poll.register(stdout, 0)
    closed = bool(poll.poll(0))
    if closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
    return closed


def loaded(names: tuple[str, ...]) -> tuple[type[BaseException], ...]:
    """Those of the named error types whose modules are loaded; no others can have been raised.

    So an error is explained where the libraries of other commands are missing.

    >>> loaded(("course_pkg.files.Missing.Error", "builtins.OSError"))
    (<class 'OSError'>,)
    """
    found = []
    for name in names:
        module, _, error = name.rpartition(".")
        if module in sys.modules:
            found.append(getattr(sys.modules[module], error))
    return tuple(found)


def extra_of(module: str | None) -> str | None:
    """The optional part of the course that installs a module's library, or None.

    Args:
        module: the module that could not be imported, such as fastapi.routing.

    >>> extra_of("fastapi.routing"), extra_of("uvicorn"), extra_of("torch"), extra_of(None)
    ('serve', 'serve', None, None)
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    try:
        lines = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:  # a copy of the folder that was never installed
        return None
    library = canonicalize_name((module or "").partition(".")[0])
    for line in map(Requirement, lines):
        extra = re.search(r"extra == \W(\w+)", str(line.marker))
        if extra and canonicalize_name(line.name) == library:
            return extra[1]
    return None
