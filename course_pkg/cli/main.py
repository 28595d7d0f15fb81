"""The program `course`: its commands are in the other modules of this folder.

Each function only parses options and prints; the module that it imports does the work.

Chapter: setup.
"""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from course_pkg import __version__
from course_pkg.cli import (
    author_commands,
    class_commands,
    grade_commands,
    serve_command,
    student_commands,
)
from course_pkg.cli.exits import NEEDS_A_LOOK, Commands

app = typer.Typer(
    cls=Commands,
    help="The course on adapting, serving and evaluating language models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
STYLES = {"ok": "green", "warning": "yellow", "missing": "red"}


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"course {__version__}")
        raise typer.Exit


@app.callback()
def course(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """The course on adapting, serving and evaluating language models."""


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Check that this machine has what the course needs.

    It prints how to fix what is missing. Exit code 0 if the essentials are present (Python,
    torch, the model or its package, disk space for it), 1 if one is missing. Without the others,
    you can still read the course.
    """
    from course_pkg import doctor as checks

    findings = checks.diagnose()
    if as_json:
        typer.echo(json.dumps(checks.as_json(findings), indent=1))
    else:
        _print_findings(findings)
    raise typer.Exit(0 if checks.fit(findings) else NEEDS_A_LOOK)


@app.command()
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


for command in (
    student_commands.start,
    student_commands.check,
    grade_commands.grade,
    grade_commands.sample_class,
    serve_command.serve,
    author_commands.release,
    author_commands.author_check,
    author_commands.bundle,
    class_commands.results,
    class_commands.export_grades,
    class_commands.extend,
    class_commands.remove_student,
):
    app.command()(command)


def _print_findings(findings) -> None:
    """A table on a terminal; tab-separated lines where the output is piped."""
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
