"""What the tests' process makes of messages, without a sandbox."""

import socket

import pytest

from course_pkg.studies.code_benchmarks import judge_process
from course_pkg.studies.code_benchmarks.program_channel import send


@pytest.fixture
def channel():
    """Both ends of a channel: the tests' and the program's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_value_too_large_for_the_memory_is_a_verdict_on_the_program(channel, monkeypatch):
    """Where a watchdog limits the memory, Python may notice first, and raises MemoryError."""

    def out_of_memory(written):
        raise MemoryError

    monkeypatch.setattr(judge_process, "from_plain", out_of_memory)
    ours, theirs = channel
    for message in ({"ready": True}, {"value": None}):
        send(theirs, message)
    found = judge_process.judge("", ["assert f(1) == 1"], "f", ours)
    assert found == {"verdict": "memory limit", "detail": "in the tests", "calls": 0}
