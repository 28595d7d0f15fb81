"""Why a chat can't start, or a turn gets no answer. Chapter: finetuning/chat."""

from course_pkg.common.errors import CourseError


class ChatError(CourseError, ValueError):
    """A chat can't start as asked, or a turn can't be answered; the message says what to do."""
