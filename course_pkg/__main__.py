"""`python -m course_pkg` is the command `course`."""

from course_pkg.cli import app

app(prog_name="course")
