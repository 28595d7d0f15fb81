"""Limits on one answer: endless loops end, and values that are far too large are refused."""

import signal
import threading
import time

import numpy as np
import pytest

from course_pkg.grading.contract.calling import OutOfTime, time_limit
from course_pkg.grading.contract.comparators import within_size
from course_pkg.grading.contract.plain_values import as_plain


def test_a_loop_that_catches_everything_once_ends_too():
    began = time.monotonic()
    with pytest.raises(OutOfTime), time_limit(0.05):
        try:
            while True:
                pass
        except BaseException:
            while True:
                pass
    assert time.monotonic() - began < 5


def test_handler_and_timer_of_the_notebook_are_restored():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with time_limit(60):
            time.sleep(0.1)
        end = time.monotonic() + 5
        while not rung and time.monotonic() < end:
            time.sleep(0.01)
        assert rung and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        signal.signal(signal.SIGALRM, before)


def test_where_no_signal_can_come_there_is_no_limit(monkeypatch):
    monkeypatch.delattr(signal, "setitimer")
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(0.01):
        time.sleep(0.05)
        assert signal.getsignal(signal.SIGALRM) is before


def test_in_another_thread_there_is_no_limit():
    done = []

    def body():
        with time_limit(0.01):
            time.sleep(0.05)
            done.append(True)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert done == [True]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("é" * 3_000_000, "a text of about 6 MB was given; expected about 16 B"),
        (np.zeros(8_000_000), "a tensor of shape (8000000,) of about 64 MB was given"),
        ([np.zeros(100_000)] * 3, "a list of about 2.4 MB"),
        ({str(i): i for i in range(60_000)}, "a dict of about"),
    ],
)
def test_a_value_far_larger_than_the_expected_one_is_refused(value, says):
    assert says in within_size({"value": as_plain(value)}, 1)["error"]


def test_what_fits_passes_and_nothing_else_of_an_outcome_is_kept():
    array = as_plain(np.zeros(100_000, "float32"))
    assert within_size({"value": array, "more": "x" * 9_000_000}, array) == {"value": array}
    assert within_size({"error": "x" * 5_000}, 1) == {"error": "x" * 1_000}
    assert within_size("junk", 1) == within_size({"points": 3}, 1) == {}
