"""The command `course`: its subcommands, and their exit codes."""

from course_pkg.cli.main import app

__all__ = ["app"]
