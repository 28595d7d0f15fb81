"""What a run of the grader is asked to do, and the limits that every submission is held to.

Chapter: appendix/for-instructors.
"""

from dataclasses import dataclass, field
from pathlib import Path

from course_pkg.sandbox.limits import ResourceLimits
from course_pkg.sandbox.probe import SandboxState

from ..results.records import MAX_RESULTS


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


@dataclass(frozen=True)
class Scheduler:
    """The scheduler of a cluster. address: such as tls://10.0.0.5:8786.

    ca, certificate, key: for TLS, the texts of the PEM files; "" for none.
    """

    address: str
    ca: str = ""
    certificate: str = field(default="", repr=False)  # its file may hold the key, too
    key: str = field(default="", repr=False)


@dataclass(frozen=True)
class Options:
    """How to grade.

    submitted: the folder or zip of submissions. jobs: submissions to run at a time, 1 to 32.
    students: grade only these; empty for all. regrade: also grade what has been graded already.
    layout: of the submissions, one of `layouts.LAYOUTS`. roster: a CSV file of the class.
    gpu_jobs: GPUs to use at most, one submission on each; None for all. scheduler: of the cluster
    that runs the submissions; None for this machine, for which jobs and gpu_jobs are.
    """

    submitted: Path
    jobs: int = 1
    limits: RunLimits = field(default_factory=RunLimits)
    students: tuple[str, ...] = ()
    regrade: bool = False
    layout: str = "auto"
    roster: Path | None = None
    gpu_jobs: int | None = None
    scheduler: Scheduler | None = None
