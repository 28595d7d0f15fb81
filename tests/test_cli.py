"""The `course` command's own texts: help at 80 and fewer columns, and the version."""

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from course_pkg import __version__
from course_pkg.cli import app

COMMANDS = sorted(get_command(app).commands)


def shown(*arguments, width=80):
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": str(width)}, terminal_width=width)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_a_whole_summary_at_80_columns(command):
    (line,) = [each for each in shown("--help").splitlines() if each.split()[:1] == [command]]
    assert line.endswith(".") and not line.endswith("...") and "…" not in line
    assert len(line) <= 80


@pytest.mark.parametrize("width", [40, 60])
def test_no_summary_is_cut_on_a_narrow_terminal(width):
    text = " ".join(shown("--help", width=width).split())
    for command in get_command(app).commands.values():
        assert command.help.splitlines()[0] in text


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_is_whole_at_80_columns(command):
    text = shown(command, "--help")
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    summary = get_command(app).commands[command].help.splitlines()[0]
    assert summary in text


def test_the_version_is_that_of_the_package():
    assert shown("--version") == f"course {__version__}\n"
