"""Watching the memory of a GPU: its peak, its limit, and whether it is free again."""

import threading

import pytest

from course_pkg.sandbox.gpus import SLACK_BYTES, Gpu, GpuMemory
from tests.waiting import wait_until

GPU = Gpu(0, "GPU-fake-0", "Fake", None, ())
GB = 10**9


class Meter:
    """What is in use on a GPU; the test changes it. later: what is read after a few looks."""

    def __init__(self, now: int | None) -> None:
        self.now = now
        self.calls = 0
        self.later: list[int] = []

    def __call__(self, gpu: Gpu) -> int | None:
        self.calls += 1
        if self.later:
            self.now = self.later.pop(0)
        return self.now

    def wait(self) -> None:
        """Until somebody has looked twice: the first look may have begun before a change."""
        seen = self.calls
        wait_until(lambda: self.calls >= seen + 2)


def watch(meter: Meter, limit: int | None = None, exceeded=lambda: None) -> GpuMemory:
    return GpuMemory(GPU, limit, exceeded, meter, pause_s=0.001)


def test_the_peak_counts_from_what_was_in_use_before():
    meter = Meter(2 * GB)
    with watch(meter) as memory:
        for now in (5 * GB, 3 * GB):
            meter.now = now
            meter.wait()
    assert memory.peak_bytes == 3 * GB and memory.measured and not memory.too_much


def test_above_the_limit_it_calls_back_once():
    meter = Meter(0)
    calls = []
    called = threading.Event()
    with watch(meter, 4 * GB, lambda: (calls.append(1), called.set())) as memory:
        meter.now = 4 * GB
        meter.wait()
        assert not memory.too_much
        meter.now = 4 * GB + 1
        assert called.wait(120)
        meter.wait()
    assert memory.too_much and calls == [1]


@pytest.mark.parametrize(("then", "kept"), [(GB + SLACK_BYTES, 0), (6 * GB, 5 * GB)])
def test_memory_is_kept_unless_it_is_free_after_a_moment(then, kept):
    meter = Meter(GB)
    with watch(meter) as memory:
        memory.stop()
        meter.later = [6 * GB, 6 * GB, 6 * GB, then]
        assert memory.kept_bytes(within_s=0.2 if kept else 120) == kept


@pytest.mark.parametrize("known_before", [False, True])
def test_what_cannot_be_measured_is_said_and_is_no_fault(known_before):
    meter = Meter(GB if known_before else None)
    with watch(meter, 1) as memory:
        meter.now = None if known_before else 5 * GB
        if known_before:
            meter.wait()
    assert not memory.measured and not memory.too_much
    assert memory.kept_bytes() == 0 and not memory.peak_bytes
