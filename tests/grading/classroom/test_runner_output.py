"""Output of a student's sandbox is untrusted: reading it never raises and always gives a state."""

import json
import os
import threading
import time
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from course_pkg.grading.classroom.execution.runner_output import (
    RunResult,
    State,
    read_all,
    read_runner_output,
)
from tests.tables import each_row


@dataclass(frozen=True)
class Bounds:
    time_limit_s: float = 600.0
    cell_timeout_s: float = 3.0
    output_bytes: int = 1000


def read_result(data: bytes, bounds: Bounds = Bounds(), silent: bool = False) -> RunResult:
    """The result of these bytes. silent: the other end closes only when all was read."""
    read = threading.Event()
    out, into = os.pipe()

    def write() -> None:
        with os.fdopen(into, "wb") as pipe:
            try:
                pipe.write(data)
                pipe.flush()
                if silent:
                    read.wait()
            except BrokenPipeError:
                pass

    writer = threading.Thread(target=write)
    writer.start()
    result = RunResult()
    with os.fdopen(out, "rb", 0) as pipe:
        read_runner_output(result, pipe.fileno(), bounds, time.monotonic())
        read.set()
    writer.join()
    return result


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


STARTED = {"started": 0.5}
RAN = {"end": "ran"}
STUCK = {"end": "stuck"}


def cell(index: int, **struck: object) -> dict[str, object]:
    return {"cell": index, "outputs": [], **struck}


def died(code: object) -> dict[str, object]:
    return {"end": "died", "cell": 2, "code": code}


FLOODED = "cell 5 put out far too much"
BOTH = {"flooded": True, "late": True}


@each_row(
    ("rows", "state", "said"),
    [
        ([RAN], State.GRADED, ""),
        ([cell(4, late=True), RAN], State.CELL_TIMED_OUT, "cell 5 took longer than 3 s"),
        ([cell(4, late=True), STUCK], State.CELL_TIMED_OUT, "it did not stop"),
        ([died(-11)], State.KERNEL_DIED, "signal 11"),
        ([died(3)], State.KERNEL_DIED, "exit code 3"),
        ([died("quit")], State.KERNEL_DIED, "by quit"),
        ([cell(4, flooded=True), RAN], State.TOO_MUCH_OUTPUT, FLOODED),
        (
            [cell(4, **BOTH), RAN],
            State.TOO_MUCH_OUTPUT,
            f"{FLOODED} and was interrupted; the others",
        ),
        ([cell(4, **BOTH), STUCK], State.TOO_MUCH_OUTPUT, "it did not stop"),
        (
            [cell(4, flooded=True), cell(6, late=True), RAN],
            State.CELL_TIMED_OUT,
            f"cell 7 took longer than 3 s; {FLOODED}",
        ),
        ([cell(4, over=True), RAN], State.GRADED, ""),
        ([{"pours": 4}, cell(4), RAN], State.GRADED, ""),
        ([], State.KERNEL_DIED, "its own code ended the processes"),
        ([{"failed": "it was the grader"}, RAN], State.GRADED, ""),  # too late to be true
    ],
)
def test_each_end_has_its_state(rows, state, said):
    result = read_result(lines(STARTED, *rows))
    assert result.state == state and said in result.reason


def test_a_run_that_did_not_start_is_the_graders_fault():
    silent = read_result(b"")
    assert silent.state == State.GRADING_ERROR and "did not start" in silent.reason
    failed = read_result(lines({"failed": "no such file"}))
    assert failed.state == State.GRADING_ERROR and "no such file" in failed.reason


def test_outputs_are_kept_if_the_kernel_dies_later():
    outputs = [{"output_type": "stream", "name": "stdout", "text": "hi"}]
    result = read_result(lines(STARTED, cell(3) | {"outputs": outputs}))
    assert result.outputs == {3: outputs} and result.state == State.KERNEL_DIED
    rows = [cell(n, ended=n == 3) for n in (2, 3, 4)]
    assert read_result(lines(STARTED, *rows)).unfinished == {2, 4}


def test_a_silent_runner_ends_at_the_time_limit():
    for rows, state in (
        ([], State.TIMED_OUT),
        ([{"pours": 4}], State.TOO_MUCH_OUTPUT),
        ([{"pours": 4}, cell(4)], State.TIMED_OUT),
        ([cell(4, flooded=True)], State.TOO_MUCH_OUTPUT),
    ):
        result = read_result(lines(STARTED, *rows), Bounds(time_limit_s=0.3), silent=True)
        assert result.state == state and "0.3 s" in result.reason


def test_a_flood_ends_at_the_output_limit_with_or_without_lines():
    for flood in (b"x" * 3_000_000, lines(*[{"cell": 1, "outputs": ["x" * 500]}] * 3000)):
        assert read_result(flood).state == State.TOO_MUCH_OUTPUT


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_any_bytes_end_in_a_state(pieces):
    assert read_result(b"\n".join(pieces)).state in State


NAMES = st.sampled_from(["cell", "outputs", "end", "late", "pours", "code", "started", "failed"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner),
)


@given(st.lists(JSON, max_size=8))
def test_any_json_ends_in_a_state(rows):
    result = read_result(lines(*rows))
    assert result.state in State and isinstance(result.reason, str)


def test_a_deeply_nested_line_is_ignored():
    data = lines(STARTED) + b"[" * 900 + b"\n" + lines({"end": "ran"})
    assert read_result(data, Bounds(output_bytes=10**6)).state == State.GRADED


def test_results_that_are_too_large_or_too_late_count_as_empty():
    for data, most, wait, expected in ((b"abc", 10, 60, b"abc"), (b"a" * 20, 10, 60, b"")):
        out, into = os.pipe()
        os.write(into, data)
        os.close(into)
        read, why = read_all(out, most, wait)
        assert read == expected and bool(why) == (read != data)
        os.close(out)
    out, into = os.pipe()
    assert read_all(out, 10, 0.1) == (b"", "it took longer than 0.1 s")
    os.close(out)
    os.close(into)
