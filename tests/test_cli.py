"""The `course` command's own texts: help at 80 and fewer columns, and the version."""

from typer.main import get_command
from typer.testing import CliRunner

from course_pkg import __version__
from course_pkg.cli import app

COMMANDS = sorted(get_command(app).commands)


def shown(*arguments, width=80):
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": str(width)}, terminal_width=width)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_each_command_has_a_whole_summary_of_one_line_at_80_columns():
    lines = filter(str.strip, shown("--help").splitlines())
    found = [line for line in lines if line.split()[0] in COMMANDS]
    assert len(found) == len(COMMANDS) > 10
    assert [line for line in found if not line.endswith(".") or line.endswith("...")] == []
    assert max(map(len, found)) <= 80 and "…" not in "".join(found)


def test_no_summary_is_cut_on_a_narrow_terminal():
    text = " ".join(shown("--help", width=40).split())
    for command in get_command(app).commands.values():
        assert command.help.splitlines()[0] in text


def test_the_help_of_a_command_is_whole_at_80_columns():
    for command in COMMANDS:
        text = shown(command, "--help")
        assert "…" not in text and max(map(len, text.splitlines())) <= 80, command
        assert get_command(app).commands[command].help.splitlines()[0] in text


def test_the_version_is_that_of_the_package():
    assert shown("--version") == f"course {__version__}\n"
