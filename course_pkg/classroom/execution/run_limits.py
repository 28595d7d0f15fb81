"""The limits that every submission of a run is held to.

Chapter: appendix/for-instructors.
"""

from dataclasses import dataclass

from course_pkg.classroom.results.record import MAX_RESULTS
from course_pkg.sandbox.limits import ResourceLimits
from course_pkg.sandbox.probe import SandboxState


class NoSandbox(RuntimeError):
    """This machine can't confine a submission; `state` says why, and what to install."""

    def __init__(self, state: SandboxState) -> None:
        super().__init__(f"{state.detail}; {state.fix}")
        self.state = state


@dataclass(frozen=True)
class RunLimits:
    """The limits of every submission of a run. sandboxed: whether a sandbox enforces them.

    gpu_bytes: of the GPU's memory, for a submission that has one; None for all of it.
    """

    time_limit_s: float = 600.0
    cell_timeout_s: float = 120.0
    memory_bytes: int = 4_000_000_000
    processes: int = 256
    output_bytes: int = 8_000_000
    disk_bytes: int = 512_000_000
    sandboxed: bool = True
    gpu_bytes: int | None = None

    def student(self) -> ResourceLimits:
        """The limits of the sandbox that runs the student's code."""
        return ResourceLimits(self.memory_bytes, self.processes, 1024, self.disk_bytes)

    def checker(self) -> ResourceLimits:
        """The limits of the sandbox that judges the answers."""
        return ResourceLimits(4_000_000_000, 64, 256, MAX_RESULTS)
