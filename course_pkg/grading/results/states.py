"""The state that every submission ends in. None is left without one.

Chapter: appendix/for-instructors.
"""

from enum import StrEnum


class State(StrEnum):
    """What became of a submission; `means` says it in a sentence.

    Whatever the state, what was earned before it is kept.

    >>> State("kernel-died").means
    'the kernel died; cells after that were not run'
    """

    GRADED = "graded"
    CELL_TIMED_OUT = "cell-timed-out"
    TIMED_OUT = "timed-out"
    KERNEL_DIED = "kernel-died"
    OUT_OF_MEMORY = "out-of-memory"
    TOO_MUCH_OUTPUT = "too-much-output"
    UNREADABLE = "unreadable"
    REFUSED = "refused"
    GRADING_ERROR = "grading-error"

    @property
    def means(self) -> str:
        """The state in words, for a report."""
        return _MEANINGS[self]


_MEANINGS = {
    State.GRADED: "every cell was run",
    State.CELL_TIMED_OUT: "one or more cells took too long and were interrupted; the rest was run",
    State.TIMED_OUT: "the time for the whole submission was over; cells after that were not run",
    State.KERNEL_DIED: "the kernel died; cells after that were not run",
    State.OUT_OF_MEMORY: "the memory limit was passed; cells after that were not run",
    State.TOO_MUCH_OUTPUT: "the output limit was passed; cells after that were not run",
    State.UNREADABLE: "no notebook can be read from the file; nothing was run",
    State.REFUSED: "the hand-in was not accepted; nothing was run",
    State.GRADING_ERROR: "the grader failed; this is no fault of the student's, so grade it again",
}
