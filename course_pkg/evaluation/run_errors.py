"""Why an evaluation can't run, or stops: the command line prints the message and an exit code.

Chapter: evaluation/likelihood-and-generation.
"""


class TaskError(ValueError):
    """A task file or its items can't be used; the message names the file and the line."""


class RunError(ValueError):
    """A run, or a comparison of runs, is not possible as asked; the message says what to do."""


class ServerError(RuntimeError):
    """A model's server does not answer any more; what it answered before is kept."""
