"""The exit codes of the `course` commands: the same fault has the same code in each of them.

0: done. 1: done, and something needs a look. 130: interrupted. The others are those of errors, in
`course_pkg.common.errors`.
"""

import os
import re
import select
import sys
import traceback
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from course_pkg.common.errors import FAILED, NO_SANDBOX, REQUEST, CourseError
from course_pkg.common.files import disk_is_full
from course_pkg.common.terminal import for_terminal

NEEDS_A_LOOK = 1
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
        names = self.list_commands(ctx)
        rows = [(name, self.get_command(ctx, name).get_short_help_str(whole)) for name in names]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error becomes its message on stderr and its exit code."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _Warnings()
                return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            if not isinstance(error, CourseError) and hasattr(error, "exit_code"):
                raise  # typer's own: bad options, and the codes that commands give
            if isinstance(error, typer.Abort):
                raise
            if isinstance(error, BrokenPipeError) and output_is_closed():
                raise typer.Exit(NEEDS_A_LOOK) from None
            code, text = explained(error)
            if text is None:
                print(for_terminal("".join(traceback.format_exception(error))), file=sys.stderr)
                text = f"`course {ctx.invoked_subcommand}` failed because of a bug in it"
            print(for_terminal(text), file=sys.stderr)
            raise typer.Exit(code) from None


class _Warnings:
    """Prints each warning once, on one line of stderr, without the line of code behind it."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, message: Warning | str, *_: object, **__: object) -> None:
        text = for_terminal(f"warning: {message}")
        if text not in self._said:
            self._said.add(text)
            print(text, file=sys.stderr)


def explained(error: BaseException) -> tuple[int, str | None]:
    """The exit code of an error, and what to print; None for a bug."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted; run the same command again to continue"
    if disk_is_full(error):
        return FAILED, "error: " + DISK_FULL.format(error=error)
    if isinstance(error, ModuleNotFoundError) and (extra := extra_of(error.name)):
        return REQUEST, (
            f"error: this command needs {error.name}, which isn't installed: "
            f'python -m pip install "{DISTRIBUTION}[{extra}]"'
        )
    if isinstance(error, CourseError):
        if error.exit_code == NO_SANDBOX:
            return NO_SANDBOX, f"no sandbox: {error}\n{INSTALL}"
        return error.exit_code, f"error: {error}"
    return FAILED, f"error: {error}" if isinstance(error, OSError) else None


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


def extra_of(module: str | None) -> str | None:
    """The optional part of the course that installs a module's library, or None.

    >>> extra_of("fastapi.routing"), extra_of("uvicorn"), extra_of("torch"), extra_of(None)
    ('serve', 'serve', None, None)
    """
    from importlib import metadata

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
