"""The `course` command: doctor, model, start, release and sample-class.

Each callback only parses and prints; the work is in the module that it names.
"""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

app = typer.Typer(
    help="The course on adapting, serving and evaluating language models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
STYLES = {"ok": "green", "warning": "yellow", "missing": "red"}


@app.callback()
def course() -> None:
    """The course on adapting, serving and evaluating language models. Chapter: setup."""


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Say what this machine has and lacks for the course, and how to mend it.

    Exit code 0 if the essentials are there (Python, torch, the model or its package, room
    for it), 1 if one is missing. Whatever else is missing only narrows what can be done.
    Chapter: setup.
    """
    from course_pkg import doctor as checks

    findings = checks.diagnose()
    if as_json:
        typer.echo(json.dumps(checks.as_json(findings), indent=1))
    else:
        _print_findings(findings)
    raise typer.Exit(0 if checks.fit(findings) else 1)


@app.command()
def model(
    name: Annotated[str, typer.Argument(help="A model's name, hub id or folder.")] = "smollm2-135m",
) -> None:
    """Make a model ready for offline use, and print the folder that it is in. Chapter: setup."""
    from course_pkg.lm import smollm2
    from course_pkg.lm.errors import ModelError

    try:
        if name == smollm2.NAME:  # needs no torch once it is converted
            folder = smollm2.prepare()
        else:
            from course_pkg.lm.load import prepare

            folder = prepare(name)
    except ModelError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(folder or f"{name} is built in memory: nothing to prepare")


@app.command()
def start(
    assignment: Annotated[str, typer.Argument(help="The assignment, such as lora-math.")],
) -> None:
    """Copy an assignment from exercises/ to work/, to do it there. Run in the course's folder.

    Chapter: exercises.
    """
    from course_pkg.grading import handout

    try:
        typer.echo(handout.start(Path.cwd(), assignment).relative_to(Path.cwd()))
    except handout.HandoutError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


@app.command()
def release(
    assignments: Annotated[list[str], typer.Argument(help="The assignments, such as lora-math.")],
) -> None:
    """Make the students' notebooks in exercises/ from solutions/.

    Chapter: appendix/for-instructors.
    """
    from course_pkg.grading import handout

    for assignment in assignments:
        try:
            changed = handout.release(Path.cwd(), assignment)
        except handout.HandoutError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from None
        typer.echo(f"exercises/{assignment}: {'released' if changed else 'unchanged'}")


@app.command()
def sample_class(
    into: Annotated[Path, typer.Option(help="The folder to make the class in.")] = Path(
        "_build/class"
    ),
) -> None:
    """Grade a class of four on every assignment: full, half, stub, and a broken file.

    Run it in the course's folder. Exit code 0 if it was graded, or can't be graded on this
    machine (it says so, and writes no grades.csv); 1 if grading failed. Chapter: setup.
    """
    from course_pkg.grading import sample_class as sample
    from course_pkg.sandbox.probe import probe

    state = probe()
    if not state.ok:
        typer.echo(f"grading skipped: {state.detail}; {state.mend}")
        return
    try:
        rows = sample.run(Path.cwd(), into)
    except (sample.GradingFailed, FileNotFoundError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{'student':9}{'assignment':14}{'score':>12}  state")
    for row in rows:
        points = f"{row.score:g} of {row.max_score:g}"
        marks = f", {row.to_mark:g} more to be marked by a person" if row.to_mark else ""
        typer.echo(f"{row.student:9}{row.assignment:14}{points:>12}  {row.state}{marks}")
    typer.echo(f"grades: {into / 'grades.csv'}   feedback: {into / 'feedback'}")


def _print_findings(findings) -> None:
    """A table on a terminal; tab-separated lines where the output is piped."""
    console = Console()
    if not console.is_terminal:
        for finding in findings:
            mend = f"\tmend: {finding.mend}" if finding.mend else ""
            typer.echo(f"{finding.state}\t{finding.name}\t{finding.found}{mend}")
        return
    table = Table("", "", "found", "mend")
    for finding in findings:
        state = Text(finding.state, style=STYLES[finding.state])
        table.add_row(state, finding.name, finding.found, finding.mend)
    console.print(table)
