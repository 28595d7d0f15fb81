"""What comes out of a student's sandbox, read as hostile: bounded in time and bytes, and parsed.

The lines are the runner's (`sandbox.warm_kernel`), or those of whoever has overpowered it. They
say how far the notebook came and what its cells put out; they can't say what anything is worth.

Chapter: appendix/threat-model.
"""

import json
import os
import time
from dataclasses import dataclass, field
from typing import Any

from course_pkg.sandbox.waiting import readable

from ..results.states import State
from .options import RunLimits

MAX_CELLS = 2**20  # as indices; what is no cell of the notebook is never looked at
MAX_VALUES = 200_000  # in one line


@dataclass
class RunResult:
    """What came of one sitting. rows: what the checker wrote, not yet believed.

    outputs: cell index -> outputs as they came, untrusted. start_s, run_s: seconds until the
    kernel was ready, and from then on.
    """

    state: State = State.GRADED
    reason: str = ""
    rows: bytes = b""
    outputs: dict[int, Any] = field(default_factory=dict)
    start_s: float = 0.0
    run_s: float = 0.0
    peak_bytes: int | None = None
    limits: str = ""
    remarks: tuple[str, ...] = ()


def follow(sat: RunResult, descriptor: int, limits: RunLimits, began: float) -> None:
    """Read lines until the end, the time limit or too many bytes; fill in what they tell.

    began: when the sitting did, on the monotonic clock. Never raises for what is read.
    """
    until, room = began + limits.time_limit_s, 3 * limits.output_bytes + 2**20
    unfinished: list[bytes] = []
    late: list[int] = []
    while True:
        left = until - time.monotonic()
        if left <= 0 or not readable(descriptor, left):
            sat.state = State.TIMED_OUT
            sat.reason = f"it took longer than the {limits.time_limit_s:g} s that it may take"
            return
        piece = os.read(descriptor, 2**16)
        room -= len(piece)
        if room < 0:
            sat.state, sat.reason = State.TOO_MUCH_OUTPUT, _too_much(limits)
            return
        if not piece:
            _broken_off(sat)
            return
        first, *others = piece.split(b"\n")
        unfinished.append(first)
        for part in others:
            line, unfinished = b"".join(unfinished), [part]
            if _take(sat, _parsed(line), late, limits, began):
                return


def _take(
    sat: RunResult, line: dict[str, Any], late: list[int], limits: RunLimits, began: float
) -> bool:
    """Take in one line; whether it was the last."""
    match line:
        case {"started": _} if not sat.start_s:
            sat.start_s = time.monotonic() - began
        case {"failed": str(why)} if not sat.start_s:
            sat.state, sat.reason = State.GRADING_ERROR, f"the sandbox was not entered: {why[:300]}"
            return True
        case {"cell": int(index), "outputs": list(outputs)} if 0 <= index < MAX_CELLS:
            sat.outputs[index] = outputs
            if line.get("late") is True and len(late) < 100:
                late.append(index)
                sat.state, sat.reason = State.CELL_TIMED_OUT, _late(late, limits)
        case {"end": "ran"}:
            return True
        case {"end": "stuck"}:
            sat.state = State.CELL_TIMED_OUT
            sat.reason = f"{_late(late, limits)}; it did not stop, so cells after it were not run"
            return True
        case {"end": "died", "cell": int(index)} if 0 <= index < MAX_CELLS:
            sat.state = State.KERNEL_DIED
            sat.reason = f"the kernel died in cell {index + 1}{_signal(line.get('code'))}"
            return True
        case {"end": "overflow"}:
            sat.state, sat.reason = State.TOO_MUCH_OUTPUT, _too_much(limits)
            return True
    return False


def _parsed(line: bytes) -> dict[str, Any]:
    if sum(map(line.count, (b",", b"[", b"{"))) > MAX_VALUES:
        return {}
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _broken_off(sat: RunResult) -> None:
    if sat.start_s:
        sat.state = State.KERNEL_DIED
        sat.reason = "its own code ended the processes that ran it"
    else:
        sat.state, sat.reason = State.GRADING_ERROR, "the kernel did not start"


def _late(late: list[int], limits: RunLimits) -> str:
    names = ", ".join(str(index + 1) for index in late[:10])
    return f"cell {names} took longer than {limits.cell_timeout_s:g} s"


def _too_much(limits: RunLimits) -> str:
    return f"its cells put out more than {limits.output_bytes / 2**20:g} MB"


def _signal(code: Any) -> str:
    if type(code) is not int:
        return ""
    return f" (signal {-code})" if code < 0 else f" (exit code {code})"


def read_all(descriptor: int, most: int, seconds: float) -> bytes:
    """Everything up to the end of a pipe, or b"" if that takes too long or is too much."""
    until, pieces, size = time.monotonic() + seconds, [], 0
    while size <= most:
        left = until - time.monotonic()
        if left <= 0 or not readable(descriptor, left):
            return b""
        piece = os.read(descriptor, 2**16)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
    return b""
