"""Limits on one answer: endless loops end, and values that are far too large are refused."""

import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from course_pkg.grading.questions import time_limits
from course_pkg.grading.questions.comparators import within_size
from course_pkg.grading.questions.plain_values import as_plain
from course_pkg.grading.questions.time_limits import FairClock, OutOfTime, time_limit
from tests.waiting import wait_until


def test_a_loop_that_catches_everything_once_ends_too():
    with pytest.raises(OutOfTime), time_limit(0.05):
        try:
            while True:
                pass
        except BaseException:
            while True:
                pass


def test_time_in_which_others_had_the_processor_does_not_count(monkeypatch):
    """The signal comes again until the time that counts is over."""
    asked = []

    def seconds(clock):
        asked.append(1)
        return 1.0 if len(asked) > 2 else 0.0

    monkeypatch.setattr(time_limits, "_AGAIN_S", 0.01)
    monkeypatch.setattr(FairClock, "seconds", seconds)
    with pytest.raises(OutOfTime), time_limit(0.5):
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        while True:
            pass
    assert len(asked) == 3


def test_a_clock_leaves_out_what_its_task_has_waited(monkeypatch):
    now = iter((10.0, 17.0))
    waited = iter((1.0, 3.0))
    monkeypatch.setattr(time_limits, "waited_s", lambda task: next(waited))
    monkeypatch.setattr(time_limits, "time", SimpleNamespace(monotonic=lambda: next(now)))
    assert FairClock().seconds() == 5.0


def test_a_busy_machine_lengthens_limits_to_a_bound(monkeypatch):
    loads = iter(((0.1, 0, 0), (12.0, 0, 0), (1e4, 0, 0)))
    monkeypatch.setattr(time_limits.os, "getloadavg", lambda: next(loads))
    monkeypatch.setattr(time_limits.os, "cpu_count", lambda: 4)
    assert [time_limits.crowding() for _ in range(3)] == [1.0, 3.0, 10.0]


def test_handler_and_timer_of_the_notebook_are_restored(monkeypatch):
    """The body takes as long as the notebook's own timer, which so rings at once afterwards."""
    clock = iter((0.0, 0.0, 3600.0))
    monkeypatch.setattr(time_limits, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 3600)
        with time_limit(60):
            assert signal.getitimer(signal.ITIMER_REAL)[0] <= 60
        wait_until(lambda: rung)
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_where_no_signal_can_come_there_is_no_limit(monkeypatch):
    monkeypatch.delattr(signal, "setitimer")
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(0.01):
        assert signal.getsignal(signal.SIGALRM) is before


def test_in_another_thread_there_is_no_limit():
    handlers = []  # it may be set in the main thread alone, where anything else is an error

    def body():
        with time_limit(0.01):
            handlers.append(signal.getsignal(signal.SIGALRM))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGALRM)]


def test_a_value_far_larger_than_the_expected_one_is_refused():
    for value, says in (
        ("é" * 3_000_000, "a text of about 6 MB was given; expected about 16 B"),
        (np.zeros(8_000_000), "a tensor of shape (8000000,) of about 64 MB was given"),
        ([np.zeros(100_000)] * 3, "a list of about 2.4 MB"),
        ({str(i): i for i in range(60_000)}, "a dict of about"),
    ):
        assert says in within_size({"value": as_plain(value)}, 1)["error"]


def test_what_fits_passes_and_nothing_else_of_an_outcome_is_kept():
    array = as_plain(np.zeros(100_000, "float32"))
    assert within_size({"value": array, "more": "x" * 9_000_000}, array) == {"value": array}
    assert within_size({"error": "x" * 5_000}, 1) == {"error": "x" * 1_000}
    assert within_size("junk", 1) == within_size({"points": 3}, 1) == {}
