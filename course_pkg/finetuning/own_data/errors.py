"""Why `course finetune` can't run as asked: the command prints the message, and exits with 2.

Chapter: finetuning/chat.
"""

from course_pkg.common.errors import CourseError


class FinetuneError(CourseError, ValueError):
    """A data file, a setting or an output folder can't be used; the message says what to do."""
