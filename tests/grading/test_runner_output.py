"""What comes out of a student's sandbox is read as hostile: never an exception, always a state."""

import json
import os
import threading
import time
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.grading.results.states import State
from course_pkg.grading.runs.runner_output import RunResult, follow, read_all


@dataclass(frozen=True)
class Bounds:
    time_limit_s: float = 5.0
    cell_timeout_s: float = 3.0
    output_bytes: int = 1000


def followed(data: bytes, bounds: Bounds = Bounds(), hold: float = 0.0) -> RunResult:
    """What is made of these bytes; the other end closes after `hold` seconds."""
    out, into = os.pipe()

    def write() -> None:
        with os.fdopen(into, "wb") as pipe:
            try:
                pipe.write(data)
                pipe.flush()
                time.sleep(hold)
            except BrokenPipeError:
                pass

    writer = threading.Thread(target=write)
    writer.start()
    sat = RunResult()
    with os.fdopen(out, "rb", 0) as pipe:
        follow(sat, pipe.fileno(), bounds, time.monotonic())
    writer.join()
    return sat


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


STARTED = {"started": 0.5}


@pytest.mark.parametrize(
    ("rows", "state", "said"),
    [
        ([STARTED, {"end": "ran"}], State.GRADED, ""),
        ([STARTED, {"cell": 4, "outputs": [], "late": True}, {"end": "ran"}],
         State.CELL_TIMED_OUT, "cell 5 took longer than 3 s"),
        ([STARTED, {"cell": 4, "outputs": [], "late": True}, {"end": "stuck"}],
         State.CELL_TIMED_OUT, "it did not stop"),
        ([STARTED, {"end": "died", "cell": 2, "code": -11}], State.KERNEL_DIED, "signal 11"),
        ([STARTED, {"end": "died", "cell": 2, "code": 3}], State.KERNEL_DIED, "exit code 3"),
        ([STARTED, {"end": "overflow"}], State.TOO_MUCH_OUTPUT, "put out more than"),
        ([STARTED], State.KERNEL_DIED, "its own code ended the processes"),
        ([], State.GRADING_ERROR, "did not start"),
        ([{"failed": "no such file"}], State.GRADING_ERROR, "no such file"),
    ],
)  # fmt: skip
def test_each_end_has_its_state(rows, state, said):
    sat = followed(lines(*rows))
    assert sat.state == state and said in sat.reason


def test_the_outputs_of_each_cell_are_kept_also_when_the_kernel_dies_later():
    outputs = [{"output_type": "stream", "name": "stdout", "text": "hi"}]
    sat = followed(lines(STARTED, {"cell": 3, "outputs": outputs}))
    assert sat.outputs == {3: outputs} and sat.state == State.KERNEL_DIED


def test_the_grader_is_not_blamed_by_a_student_after_the_start():
    sat = followed(lines(STARTED, {"failed": "it was the grader"}, {"end": "ran"}))
    assert sat.state == State.GRADED


def test_silence_ends_at_the_time_limit():
    began = time.monotonic()
    sat = followed(lines(STARTED), Bounds(time_limit_s=0.3), hold=1.0)
    assert sat.state == State.TIMED_OUT and "0.3 s" in sat.reason
    assert time.monotonic() - began < 2


def test_a_flood_ends_at_the_limit_whether_it_has_lines_or_not():
    for flood in (b"x" * 3_000_000, lines(*[{"cell": 1, "outputs": ["x" * 500]}] * 3000)):
        assert followed(flood).state == State.TOO_MUCH_OUTPUT


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_bytes_of_any_kind_end_in_a_state(pieces):
    assert followed(b"\n".join(pieces)).state in State


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["cell", "outputs", "end", "late", "code", "started", "failed"]), inner
        )
    ),
)


@given(st.lists(JSON, max_size=8))
def test_json_of_any_shape_ends_in_a_state(rows):
    sat = followed(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    assert sat.state in State and isinstance(sat.reason, str)


def test_deep_nesting_is_one_bad_line_among_good_ones():
    data = lines(STARTED) + b"[" * 900 + b"\n" + lines({"end": "ran"})
    assert followed(data, Bounds(output_bytes=10**6)).state == State.GRADED


def test_results_that_are_too_long_or_come_too_late_count_as_none():
    for data, most, wait, wanted in ((b"abc", 10, 1, b"abc"), (b"a" * 20, 10, 1, b"")):
        out, into = os.pipe()
        os.write(into, data)
        os.close(into)
        assert read_all(out, most, wait) == wanted
        os.close(out)
    out, into = os.pipe()
    assert read_all(out, 10, 0.1) == b""
    os.close(out)
    os.close(into)
