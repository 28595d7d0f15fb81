"""The commands of `course` for somebody who solves an assignment: start and check.

Each function only parses options and prints; the module that it imports does the work.

Chapter: exercises.
"""

from pathlib import Path
from typing import Annotated

import typer

from course_pkg.cli.exits import NEEDS_A_LOOK


def start(
    assignment: Annotated[str, typer.Argument(help="The assignment, such as lora-math.")],
) -> None:
    """Copy an assignment from exercises/ to work/.

    You solve it there, and `course check` checks it. Run this in the course's folder."""
    from course_pkg.classroom.release import start_work

    typer.echo(start_work(Path.cwd(), assignment).relative_to(Path.cwd()))


def check(
    assignment: Annotated[str, typer.Argument(help="The assignment, such as lora-math.")],
    notebook: Annotated[
        Path | None,
        typer.Argument(help="Your notebook [default: the one that `course start` made in work/]"),
    ] = None,
) -> None:
    """Check your own notebook: run it, and print each report.

    The notebook runs in a fresh kernel, in its folder and with your rights, and its file stays as
    it is. A cell that fails does not stop the others. Without NOTEBOOK, run this in the course's
    folder. Exit code 0: every point by program is earned. 1: some are not. 2: no such notebook.
    """
    from course_pkg.classroom.execution.runner_output import RunLimits
    from course_pkg.classroom.release import require_course
    from course_pkg.grading import own_notebook

    if notebook is None:
        require_course(Path.cwd())
        notebook = own_notebook.own_notebook(Path.cwd(), assignment)
    cell_s = RunLimits().cell_timeout_s
    if not own_notebook.check_notebook(notebook, assignment, cell_s, typer.echo):
        raise typer.Exit(NEEDS_A_LOOK)
