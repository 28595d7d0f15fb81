"""The `course` command. Its commands for authors are in `cli_author`, those about a class in
`cli_class`, and `serve` is in `cli_serve`.

Each function only parses options and prints; the module that it imports does the work.

Chapter: setup.
"""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from course_pkg import __version__, cli_author, cli_class, cli_serve
from course_pkg.exits import NEEDS_A_LOOK, NO_SANDBOX, Commands

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


@app.command()
def start(
    assignment: Annotated[str, typer.Argument(help="The assignment, such as lora-math.")],
) -> None:
    """Copy an assignment from exercises/ to work/.

    You solve it there, and `course check` checks it. Run this in the course's folder."""
    from course_pkg.grading.gradebook.release import start_work

    typer.echo(start_work(Path.cwd(), assignment).relative_to(Path.cwd()))


@app.command()
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
    from course_pkg.grading.runs import own_notebook

    path = notebook or own_notebook.own_notebook(Path.cwd(), assignment)
    if not own_notebook.check_notebook(path, assignment, typer.echo):
        raise typer.Exit(NEEDS_A_LOOK)


@app.command()
def grade(
    assignment: Annotated[str, typer.Argument(help="The assignment, such as lora-math.")],
    submitted: Annotated[
        Path,
        typer.Option(help="Folder or zip of submissions; README.md has the layouts."),
    ] = Path("submitted"),
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=32, help="Submissions to grade at once [default: cores + 2]"),
    ] = None,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds per submission.")] = 600,
    cell_timeout: Annotated[float, typer.Option(min=1, help="Seconds per cell.")] = 120,
    memory: Annotated[float, typer.Option(min=0.5, help="GB per submission.")] = 4,
    gpu_jobs: Annotated[
        int | None,
        typer.Option(min=0, max=32, help="GPUs to use, one submission on each [default: all]"),
    ] = None,
    gpu_memory: Annotated[
        float | None, typer.Option(min=0.5, help="GB of a GPU per submission [default: all]")
    ] = None,
    student: Annotated[
        list[str] | None, typer.Option(help="Grade only this student; repeatable.")
    ] = None,
    layout: Annotated[
        str, typer.Option(help="Of the submissions: auto, nbgrader, flat, moodle or canvas.")
    ] = "auto",
    roster: Annotated[
        Path | None,
        typer.Option(help="CSV of the class: your own, Moodle's worksheet or Canvas's gradebook."),
    ] = None,
    regrade: Annotated[
        bool, typer.Option("--regrade", help="Grade again what has a grade.")
    ] = False,
    unsafe_no_sandbox: Annotated[
        bool, typer.Option("--unsafe-no-sandbox", help="Run submissions with YOUR permissions.")
    ] = False,
    scheduler: Annotated[
        str | None, typer.Option(help="Run submissions on a Dask cluster: tls://HOST:PORT.")
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="Certificate of the cluster's authority (PEM).")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Your certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
) -> None:
    """Grade submissions, each in a separate sandbox.

    Run this in the course's folder. Exit code 0: every submission is graded. 1: every submission
    was processed; look at those that the summary names, and at those that wait for a GPU. 2: the
    arguments or files are not usable. 3: this machine can't sandbox submissions, so none was run.
    4: the grader, the machine or the cluster failed; run the command again. 130: interrupted; run
    the command again to continue.
    """
    from course_pkg.grading.runs import command
    from course_pkg.grading.submissions.layouts import LAYOUTS

    if layout not in LAYOUTS:
        raise typer.BadParameter(
            f"{layout!r}; expected {', '.join(LAYOUTS)}", param_hint="--layout"
        )
    options = command.options(
        submitted, jobs, time_limit, cell_timeout, memory, student or (), regrade,
        unsafe_no_sandbox, layout, roster, gpu_jobs, gpu_memory,
        command.cluster(scheduler, tls_ca, tls_cert, tls_key),
    )  # fmt: skip
    raise typer.Exit(command.run(Path.cwd(), assignment, options))


@app.command()
def sample_class(
    into: Annotated[Path, typer.Option(help="The folder for the class.")] = Path("_build/class"),
    every: Annotated[
        bool, typer.Option("--all", help="Grade every assignment, not four of them.")
    ] = False,
) -> None:
    """Grade a sample class of four students.

    They submit all answers, half of them, none, and a broken file. Run this in the course's
    folder. Exit code 0 if the class was graded; 3 if this machine can't grade (the command then
    says why and writes no grades.csv); 4 if grading failed.
    """
    from course_pkg.grading.feedback import class_report
    from course_pkg.grading.runs import progress
    from course_pkg.grading.runs import sample_class as sample
    from course_pkg.sandbox.probe import probe

    if not (state := probe()).ok:
        typer.echo(f"grading skipped: {state.detail}; {state.fix}")
        raise typer.Exit(NO_SANDBOX)
    assignments = sample.build(Path.cwd(), into, every=every)
    with progress.ProgressDisplay() as show:
        graded = sample.grade(into, assignments, show)
    for assignment, records in graded.items():
        waiting = class_report.waiting_points(into, assignment)
        progress.print_summary(records, 0, waiting=waiting)
    typer.echo(f"grades: {into}/results/<assignment>/grades.csv   feedback: {into}/feedback")


app.command()(cli_serve.serve)
app.command()(cli_author.release)
app.command()(cli_author.author_check)
app.command()(cli_author.bundle)
app.command()(cli_class.results)
app.command()(cli_class.export_grades)
app.command()(cli_class.extend)
app.command()(cli_class.remove_student)


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
