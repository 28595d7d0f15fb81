"""The `course` command: doctor, model, start, release, check, grade and sample-class.

Each callback only parses and prints; the work is in the module that it names.

Chapter: setup.
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
    """The course on adapting, serving and evaluating language models."""


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Say what this machine has and lacks for the course, and how to mend it.

    Exit code 0 if the essentials are there (Python, torch, the model or its package, room
    for it), 1 if one is missing. Whatever else is missing only narrows what can be done.
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
    """Make a model ready for offline use, and print the folder that it is in."""
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
    """Copy an assignment from exercises/ to work/, to do it there. Run in the course's folder."""
    from course_pkg.grading.gradebook.release import ReleaseError, start_work

    try:
        typer.echo(start_work(Path.cwd(), assignment).relative_to(Path.cwd()))
    except ReleaseError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


@app.command()
def release(
    assignments: Annotated[list[str], typer.Argument(help="The assignments, such as lora-math.")],
) -> None:
    """Make the students' notebooks in exercises/ from solutions/."""
    from course_pkg.grading.gradebook.release import ReleaseError, release_assignment

    for assignment in assignments:
        try:
            changed = release_assignment(Path.cwd(), assignment)
        except ReleaseError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from None
        typer.echo(f"exercises/{assignment}: {'released' if changed else 'unchanged'}")


@app.command()
def check(
    assignment: Annotated[str, typer.Argument(help="The assignment, such as lora-math.")],
    students: Annotated[int, typer.Option(min=1, help="How many students' cases to draw.")] = 25,
) -> None:
    """Print an author's matrix: which properties each wrong answer loses, for many students.

    Exit code 0 if the model answers earn every point, each wrong answer loses exactly what
    questions.toml says and is recognized, and the notebook's solutions are the model answers; 1
    if not.
    """
    from course_pkg.grading import author
    from course_pkg.grading.contract.questions import ChecksError
    from course_pkg.grading.contract.registry import UnknownQuestion

    try:
        rows = author.matrix(assignment, students)
    except (ChecksError, UnknownQuestion) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    for line in author.lines(rows, students):
        typer.echo(line)
    notebook = Path("solutions", assignment, f"{assignment}.ipynb")
    differences = author.solution_differences(assignment, notebook) if notebook.is_file() else []
    for line in differences:
        typer.echo(f"error: {line}", err=True)
    raise typer.Exit(1 if differences or any(row.problem for row in rows) else 0)


@app.command()
def grade(
    assignment: Annotated[str, typer.Argument(help="The assignment, such as lora-math.")],
    submitted: Annotated[
        Path, typer.Option(help="Folder or zip of hand-ins: nbgrader's layout, or <student>.ipynb.")
    ] = Path("submitted"),
    jobs: Annotated[
        int | None, typer.Option(min=1, max=32, help="Submissions at a time [default: cores + 1]")
    ] = None,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds for a submission.")] = 600,
    cell_timeout: Annotated[float, typer.Option(min=1, help="Seconds for a cell.")] = 120,
    memory: Annotated[float, typer.Option(min=0.5, help="GB for a submission.")] = 4,
    student: Annotated[list[str] | None, typer.Option(help="Only this one; repeatable.")] = None,
    regrade: Annotated[
        bool, typer.Option("--regrade", help="Also what is graded already.")
    ] = False,
    unsafe_no_sandbox: Annotated[
        bool, typer.Option("--unsafe-no-sandbox", help="Run hand-ins with all YOUR rights.")
    ] = False,
) -> None:
    """Grade an assignment's hand-ins, each in a sandbox of its own. Run in the course's folder.

    Exit code 0: every one is graded. 1: every one has its score, but some are to be looked at, and
    the summary names them. 2: it can't be done as it was asked for. 3: this machine can't confine
    a hand-in, so none was run. 4: the grader failed on one or more; run it again. 130: it was
    interrupted; run it again, and it goes on.
    """
    from course_pkg.grading.runs import command

    options = command.options(
        submitted, jobs, time_limit, cell_timeout, memory, student or (), regrade, unsafe_no_sandbox
    )
    raise typer.Exit(command.run(Path.cwd(), assignment, options))


@app.command()
def sample_class(
    into: Annotated[Path, typer.Option(help="The folder to make the class in.")] = Path(
        "_build/class"
    ),
) -> None:
    """Grade a class of four on every assignment: full, half, stub, and a broken file.

    Run it in the course's folder. Exit code 0 if it was graded, or can't be graded on this
    machine (it says so, and writes no grades.csv); 1 if grading failed.
    """
    from course_pkg.grading.runs import progress
    from course_pkg.grading.runs import sample_class as sample
    from course_pkg.sandbox.probe import probe

    if not (state := probe()).ok:
        typer.echo(f"grading skipped: {state.detail}; {state.fix}")
        return
    try:
        assignments = sample.build(Path.cwd(), into)
        with progress.ProgressDisplay() as show:
            graded = sample.grade(into, assignments, show)
    except (RuntimeError, FileNotFoundError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    for records in graded.values():
        progress.print_summary(records, 0)
    typer.echo(f"grades: {into}/results/<assignment>/grades.csv   feedback: {into}/feedback")


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
