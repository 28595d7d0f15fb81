"""The base of the errors that are explained to a user: every other exception is a bug.

A command prints only the message of such an error, one line that says what was found and how to fix
it, and ends with its exit code. Whoever must decide by an error asks for its type or a field, never
for a word of its message.
"""

REQUEST = 2  # the request is not possible as it is
NO_SANDBOX = 3  # no sandbox on this machine
FAILED = 4  # the machine, a program that was started, or a server


class CourseError(Exception):
    """An error in what was asked for, or in a file that it needs."""

    exit_code = REQUEST


class FailedError(CourseError):
    """The machine, a server, or a program that was started has failed."""

    exit_code = FAILED
