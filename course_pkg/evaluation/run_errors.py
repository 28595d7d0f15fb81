"""Why an evaluation can't run."""

from course_pkg.common.errors import CourseError


class TaskError(CourseError, ValueError):
    """A task file or its items can't be used; the message names the file and the line."""


class RunError(CourseError, ValueError):
    """A run, or a comparison of runs, is not possible as asked; the message says what to do."""
