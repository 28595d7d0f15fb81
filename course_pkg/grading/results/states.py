"""The states in which a submission can end. Every submission ends in one.

Chapter: appendix/for-instructors.
"""

from enum import StrEnum


class State(StrEnum):
    """How the grading of a submission ended; `means` says it in a sentence.

    In every state, the points earned before the end are kept.

    >>> State("kernel-died").means
    'the kernel died; later cells were not run'
    """

    GRADED = "graded"
    ANSWER_LATE = "answer-late"
    CELL_TIMED_OUT = "cell-timed-out"
    TIMED_OUT = "timed-out"
    KERNEL_DIED = "kernel-died"
    OUT_OF_MEMORY = "out-of-memory"
    TOO_MUCH_OUTPUT = "too-much-output"
    UNREADABLE = "unreadable"
    REFUSED = "refused"
    RECORD_CHANGED = "record-changed"
    GRADING_ERROR = "grading-error"
    WORKERS_LOST = "workers-lost"
    WAITING = "waiting: needs a GPU"

    @property
    def means(self) -> str:
        """The state in words, for a report."""
        return _MEANINGS[self]

    @property
    def has_score(self) -> bool:
        """Whether the score says something about the student's work."""
        none = (State.RECORD_CHANGED, State.GRADING_ERROR, State.WORKERS_LOST, State.WAITING)
        return self not in none


_MEANINGS = {
    State.GRADED: "every cell was run",
    State.ANSWER_LATE: "one or more answers came after their question's time limit and don't count",
    State.CELL_TIMED_OUT: "one or more cells took too long and were interrupted; the others ran",
    State.TIMED_OUT: "the time limit of the submission was reached; later cells were not run",
    State.KERNEL_DIED: "the kernel died; later cells were not run",
    State.OUT_OF_MEMORY: "the memory limit was exceeded; later cells were not run",
    State.TOO_MUCH_OUTPUT: "the output limit was exceeded; later cells were not run",
    State.UNREADABLE: "the file is not a readable notebook; nothing was run",
    State.REFUSED: "the submission was not accepted; nothing was run",
    State.RECORD_CHANGED: "the stored record was changed by somebody else; nothing was graded",
    State.GRADING_ERROR: "the grader failed, which is not the student's fault: grade it again",
    State.WORKERS_LOST: "three workers of the cluster ended while they graded it: see its reason",
    State.WAITING: "it has no score yet: run `course grade` again on a machine with a GPU",
}
