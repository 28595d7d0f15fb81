"""How a run of the grader is asked for, and who is told how it goes on.

Chapter: appendix/for-instructors.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from course_pkg.sandbox.probe import SandboxState

from ..ledger.records import Record
from .sitting import Rules


class NoSandbox(RuntimeError):
    """This machine can't confine a submission; `state` says why, and what to install."""

    def __init__(self, state: SandboxState) -> None:
        super().__init__(f"{state.detail}; {state.mend}")
        self.state = state


class Show(Protocol):
    """Who is told how a run goes on."""

    def expect(self, total: int) -> None:
        """How many submissions there are."""

    def started(self, student: str) -> None:
        """A submission is being run now."""

    def finished(self, record: Record) -> None:
        """A submission has its record, and it is written."""


@dataclass(frozen=True)
class Options:
    """How to grade. submitted: folder or zip; students: all, if none is named.

    jobs: submissions run at a time, 1 to 32. regrade: also what is graded already.
    """

    submitted: Path
    jobs: int = 1
    rules: Rules = field(default_factory=Rules)
    students: tuple[str, ...] = ()
    regrade: bool = False
