"""The limits of a run, and what comes out of its sandbox: bounded, parsed, never trusted.

The lines come from the notebook runner inside the sandbox, or from a student's code that has taken
it over. They can't change a score.
"""

import json
import os
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from course_pkg.common.errors import NO_SANDBOX, FailedError
from course_pkg.common.files import readable_size
from course_pkg.grading.questions.time_limits import crowding
from course_pkg.sandbox.limits import ResourceLimits
from course_pkg.sandbox.probe import SandboxState
from course_pkg.sandbox.waiting import readable

if TYPE_CHECKING:
    from course_pkg.sandbox.process import SandboxedProcess

MAX_RESULTS = 4 * 1024 * 1024  # bytes that a checker may write
MAX_CELLS = 2**20  # larger indices are ignored; the notebook has fewer cells anyway
MAX_VALUES = 200_000  # JSON values in one line


class State(StrEnum):
    """How the grading of a submission ended. Points earned before the end are kept."""

    GRADED = "graded", "every cell was run"
    ANSWER_LATE = (
        "answer-late",
        "one or more answers came after their question's time limit and don't count",
    )
    CELL_TIMED_OUT = (
        "cell-timed-out",
        "one or more cells took too long and were interrupted; the others ran",
    )
    TIMED_OUT = (
        "timed-out",
        "the time limit of the submission was reached; later cells were not run",
    )
    KERNEL_DIED = "kernel-died", "the kernel died; later cells were not run"
    OUT_OF_MEMORY = "out-of-memory", "the memory limit was exceeded; later cells were not run"
    TOO_MUCH_OUTPUT = (
        "too-much-output",
        "one or more cells put out far too much, and were interrupted: see its reason",
    )
    UNREADABLE = "unreadable", "the file is not a readable notebook; nothing was run"
    REFUSED = "refused", "the submission was not accepted; nothing was run"
    RECORD_CHANGED = (
        "record-changed",
        "the stored record was changed by somebody else; nothing was graded",
    )
    GRADING_ERROR = (
        "grading-error",
        "the grader failed, which is not the student's fault: grade it again",
    )
    WORKERS_LOST = (
        "workers-lost",
        "three workers of the cluster ended while they graded it: see its reason",
    )
    WAITING = (
        "waiting: needs a GPU",
        "it has no score yet: run `course grade` again on a machine with a GPU",
    )

    means: str

    def __new__(cls, value: str, means: str) -> "State":
        state = str.__new__(cls, value)
        state._value_ = value
        state.means = means
        return state

    @property
    def has_score(self) -> bool:
        """Whether the score says something about the student's work."""
        none = (State.RECORD_CHANGED, State.GRADING_ERROR, State.WORKERS_LOST, State.WAITING)
        return self not in none


def strict_json(text: bytes) -> Any:
    """The value of a JSON text. Raises ValueError for NaN, a repeated name, and deep nesting."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a repeated name in one object")
        return dict(pairs)

    def never(name: str) -> Any:
        raise ValueError(f"{name} is not allowed")

    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=once, parse_constant=never)
    except RecursionError:
        raise ValueError("nested too deeply") from None


class NoSandbox(FailedError, RuntimeError):
    """This machine can't confine a submission; `state` says why, and what to install."""

    exit_code = NO_SANDBOX

    def __init__(self, state: SandboxState) -> None:
        super().__init__(f"{state.detail}; {state.fix}")
        self.state = state


@dataclass(frozen=True)
class RunLimits:
    """The limits of every submission of a run.

    Attributes:
        sandboxed: whether a sandbox enforces them.
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
        return ResourceLimits(self.memory_bytes, self.processes, 1024, self.disk_bytes)

    def checker(self) -> ResourceLimits:
        return ResourceLimits(4_000_000_000, 64, 256, MAX_RESULTS)


@dataclass
class RunResult:
    """The result of one run.

    Attributes:
        verdicts: what the checker wrote, not yet validated.
        no_verdicts: why it wrote none, if that is known.
        outputs: cell index -> outputs as they came, untrusted.
        unfinished: cells that took too long, or in which the kernel died.
        start_s, run_s: seconds until the kernel was ready, and from then on.
    """

    state: State = State.GRADED
    reason: str = ""
    verdicts: bytes = b""
    no_verdicts: str = ""
    outputs: dict[int, Any] = field(default_factory=dict)
    unfinished: set[int] = field(default_factory=set)
    start_s: float = 0.0
    run_s: float = 0.0
    peak_bytes: int | None = None
    limits: str = ""
    remarks: tuple[str, ...] = ()
    gpu: str = ""
    gpu_peak_bytes: int | None = None

    def end(self, state: State, reason: str) -> None:
        self.state = state
        self.reason = reason


def read_runner_output(result: RunResult, descriptor: int, limits: RunLimits, began: float) -> None:
    """Fill in `result` from lines, until the end, the time limit or too many bytes. Never raises.

    Args:
        began: when the run started, on the monotonic clock.
    """
    until = began + limits.time_limit_s * crowding()
    room = 3 * limits.output_bytes + 2**20
    unfinished: list[bytes] = []
    struck = _Struck()
    while True:
        left = until - time.monotonic()
        if left <= 0 or not readable(descriptor, left):
            return struck.end_late(result, limits)
        piece = os.read(descriptor, 2**16)
        room -= len(piece)
        if room < 0:
            return result.end(State.TOO_MUCH_OUTPUT, _too_much(limits))
        if not piece and result.start_s:
            return result.end(State.KERNEL_DIED, "its own code ended the processes that ran it")
        if not piece:
            return result.end(State.GRADING_ERROR, "the kernel did not start")
        first, *others = piece.split(b"\n")
        unfinished.append(first)
        for part in others:
            line = b"".join(unfinished)
            unfinished = [part]
            if _is_last(result, parsed(line), struck, limits, began):
                return None


@dataclass
class _Struck:
    """The cells that a limit has struck; `pours` is the one that runs, if it puts out too much."""

    late: list[int] = field(default_factory=list)
    flooded: list[int] = field(default_factory=list)
    pours: int | None = None

    def end(self, result: RunResult, limits: RunLimits, then: str) -> None:
        why = []
        if self.late:
            why.append(f"{_cells(self.late)} took longer than {limits.cell_timeout_s:g} s")
        if self.flooded:
            why.append(f"{_cells(self.flooded)} put out far too much and was interrupted")
        state = State.CELL_TIMED_OUT if self.late else State.TOO_MUCH_OUTPUT
        result.end(state, f"{'; '.join(why)}; {then}")

    def end_late(self, result: RunResult, limits: RunLimits) -> None:
        why = f"it took longer than its time limit of {limits.time_limit_s:g} s"
        cells = self.flooded if self.pours is None else [*self.flooded, self.pours]
        if cells:
            result.end(State.TOO_MUCH_OUTPUT, f"{_cells(cells)} put out far too much; {why}")
        else:
            result.end(State.TIMED_OUT, why)


def _is_last(
    result: RunResult, line: dict[str, Any], struck: _Struck, limits: RunLimits, began: float
) -> bool:
    """Fill in what one line says; whether it was the last line."""
    match line:
        case {"started": _} if not result.start_s:
            result.start_s = time.monotonic() - began
        case {"failed": str(why)} if not result.start_s:
            result.end(State.GRADING_ERROR, f"the sandbox could not be entered: {why[:300]}")
            return True
        case {"cell": index} if read_cell(result, line):
            struck.pours = None
            kind = {"flooded": struck.flooded, "late": struck.late}
            cells = next((kind[name] for name in kind if line.get(name) is True), None)
            if cells is not None and len(cells) < 100:
                cells.append(index)
                struck.end(result, limits, "the others ran")
            if line.get("over") is True and not result.remarks:
                result.remarks = (f"{_too_much(limits)}; the rest is not shown",)
        case {"pours": int(index)} if 0 <= index < MAX_CELLS:
            struck.pours = index
        case {"end": "ran"}:
            return True
        case {"end": "stuck"} if struck.late or struck.flooded:
            struck.end(result, limits, "it did not stop, so later cells were not run")
            return True
        case {"end": "died", "cell": int(index)} if 0 <= index < MAX_CELLS:
            code = _exit(line.get("code"))
            result.end(State.KERNEL_DIED, f"the kernel died in cell {index + 1}{code}")
            return True
    return False


def read_cell(result: RunResult, line: dict[str, Any]) -> bool:
    """Take the outputs of one cell from a line; whether it has the form of such a line."""
    match line:
        case {"cell": int(index), "outputs": list(outputs)} if 0 <= index < MAX_CELLS:
            result.outputs[index] = outputs
            if line.get("ended") is False:
                result.unfinished.add(index)
            return True
    return False


def parsed(line: bytes) -> dict[str, Any]:
    """The JSON object of a line; {} for anything else, and for one of too many values."""
    if most_values(line) > MAX_VALUES:
        return {}
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def most_values(line: bytes) -> int:
    """A bound on the JSON values in a line, less one; it counts commas in texts as well."""
    return sum(map(line.count, (b",", b"[", b"{")))


def explain(result: RunResult, kernel: "SandboxedProcess", limits: RunLimits) -> None:
    """Add what the enforcer of the kernel's limits knows about how the run ended."""
    enforcer = kernel.enforcer
    if result.state in (State.KERNEL_DIED, State.GRADING_ERROR):
        if enforcer.out_of_memory():
            limit = readable_size(limits.memory_bytes)
            result.end(State.OUT_OF_MEMORY, f"it used more than its {limit} of memory")
        elif enforcer.killed_within_limits():
            result.end(State.GRADING_ERROR, "the machine ran short of memory")
    if enforcer.out_of_processes():
        result.remarks += (f"it tried to run more than {limits.processes} processes at once",)
    result.limits = kernel.enforced_by
    result.peak_bytes = enforcer.peak_bytes()


def read_all(descriptor: int, most: int, seconds: float) -> tuple[bytes, str]:
    """All bytes of a pipe, and ""; or b"" and why, if they are too late or more than `most`."""
    until = time.monotonic() + seconds * crowding()
    data = b""
    while len(data) <= most:
        left = until - time.monotonic()
        if left <= 0 or not readable(descriptor, left):
            return b"", f"it took longer than {seconds:g} s"
        piece = os.read(descriptor, 2**16)
        if not piece:
            return data, ""
        data += piece
    return b"", f"it wrote more than {readable_size(most)}"


def _cells(indices: list[int]) -> str:
    return f"cell {', '.join(str(index + 1) for index in indices[:10])}"


def _too_much(limits: RunLimits) -> str:
    return f"its cells put out more than {readable_size(limits.output_bytes)}"


def _exit(code: Any) -> str:
    if code == "quit":
        return ", by quit or exit"
    if type(code) is not int:
        return ""
    return f" (signal {-code})" if code < 0 else f" (exit code {code})"
