"""The program `course`: its commands are in the modules of this folder.

A module whose name ends in `_command` or `_commands` has a function `add_to`, which adds its
commands. Each command only parses options and prints.
"""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated

import typer

from course_pkg import __version__
from course_pkg.cli.exits import Commands


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"course {__version__}")
        raise typer.Exit


def course(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """The course on adapting, serving and evaluating language models."""


def make_app() -> typer.Typer:
    """The program with all commands."""
    app = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(course)
    for module in iter_modules([str(Path(__file__).parent)]):
        if module.name.endswith(("_command", "_commands")):
            import_module(f"{__package__}.{module.name}").add_to(app)
    return app


app = make_app()
