"""The program `course`, with the commands of a reader: doctor, model, start and check.

The other commands are in the other modules of this folder. Each function only parses options and
prints; the modules that it imports do the work.

Chapter: setup.
"""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from course_pkg import __version__
from course_pkg.cli import (
    author_commands,
    chat_command,
    class_commands,
    eval_command,
    export_command,
    finetune_command,
    grade_commands,
    score_bleu_command,
    score_perplexity_command,
    score_texts_commands,
    serve_command,
)
from course_pkg.cli.exits import NEEDS_A_LOOK, Commands
from course_pkg.cli.score_options import ScoreCommand

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
    from course_pkg.cli import doctor as checks

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
    from course_pkg.grading.classroom.release import start_work

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


for command in (
    grade_commands.grade,
    grade_commands.sample_class,
    finetune_command.finetune,
    chat_command.chat,
    serve_command.serve,
    export_command.export,
    author_commands.release,
    author_commands.author_check,
    author_commands.bundle,
    class_commands.results,
    class_commands.export_grades,
    class_commands.extend,
    class_commands.remove_student,
    class_commands.rename_student,
):
    app.command()(command)
app.command("eval")(eval_command.evaluate)

score = typer.Typer(
    cls=Commands,
    help="""Score files: BLEU, ROUGE, METEOR, BERTScore, perplexity.

    Texts are on the lines of a file, one on each, or in JSON lines. Each command's --help has
    examples.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (
    score_bleu_command.bleu,
    score_texts_commands.rouge,
    score_texts_commands.meteor,
    score_texts_commands.bertscore,
    score_perplexity_command.perplexity,
):
    score.command(cls=ScoreCommand)(command)
app.add_typer(score, name="score")


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
