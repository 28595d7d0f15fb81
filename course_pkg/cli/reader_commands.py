"""The commands of `course` for a reader: doctor, model, start and check."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from course_pkg.cli.exits import NEEDS_A_LOOK

if TYPE_CHECKING:
    from course_pkg.cli.doctor import CheckResult

STYLES = {"ok": "green", "warning": "yellow", "missing": "red"}


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (doctor, model, start, check):
        app.command()(command)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Check that this machine has what the course needs.

    It prints how to fix what is missing. Exit code 0 if the essentials are present (Python,
    torch, the model or its package, disk space for it), 1 if one is missing. Without the others,
    you can still read the course.
    """
    from course_pkg.cli import doctor as checks

    findings = checks.diagnose()
    if as_json:
        report = {"fit": checks.fit(findings), "findings": list(map(asdict, findings))}
        typer.echo(json.dumps(report, indent=1))
    else:
        _print_findings(findings)
    raise typer.Exit(0 if checks.fit(findings) else NEEDS_A_LOOK)


def model(
    name: Annotated[str, typer.Argument(help="A model's name, hub id or folder.")] = "smollm2-135m",
) -> None:
    """Prepare a model for offline use, and print its folder."""
    from course_pkg.lm import smollm2

    if name == smollm2.NAME:  # needs no torch once it is converted
        folder = smollm2.prepare()
    else:
        from course_pkg.lm.load import prepare

        folder = prepare(name)
    typer.echo(folder or f"{name} is built in memory, so there is nothing to prepare")


def start(
    assignment: Annotated[str, typer.Argument(help="The assignment, such as lora-math.")],
) -> None:
    """Copy an assignment from exercises/ to work/.

    You solve it there, and `course check` checks it. Run this in the course's folder."""
    from course_pkg.grading.classroom.release import start_work

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
    it is. As in the grader, locked cells are those of the release, output over 8 MB is dropped,
    and a cell that fails does not stop the others. Without NOTEBOOK, run this in the course's
    folder. Exit code 0: every point by program is earned. 1: some are not. 2: no such notebook.
    """
    from course_pkg.grading import own_notebook
    from course_pkg.grading.classroom.execution.runner_output import RunLimits
    from course_pkg.grading.classroom.release import require_course

    if notebook is None:
        require_course(Path.cwd())
        notebook = own_notebook.own_notebook(Path.cwd(), assignment)
    limits = RunLimits()
    if not own_notebook.check_notebook(
        notebook, assignment, limits.cell_timeout_s, limits.output_bytes, typer.echo
    ):
        raise typer.Exit(NEEDS_A_LOOK)


def _print_findings(findings: "list[CheckResult]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        for finding in findings:
            fix = f"\tfix: {finding.fix}" if finding.fix else ""
            typer.echo(f"{finding.state}\t{finding.name}\t{finding.found}{fix}")
        return
    table = Table("", "", "found", "fix")
    for finding in findings:
        state = Text(finding.state, style=STYLES[finding.state])
        table.add_row(state, finding.name, finding.found, finding.fix)
    console.print(table)
