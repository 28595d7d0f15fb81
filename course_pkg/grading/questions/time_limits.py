"""Time limits on answers and cells, which count no wait for processors that others use.

The kernel of Linux counts for each thread how long it was ready and did not run; elsewhere that
counts as 0.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MOST_CROWDED = 10.0

_AGAIN_S = 1.0  # the signal is repeated, since `except:` in an answer may swallow one


class OutOfTime(BaseException):
    """The time limit was reached. Not an Exception, which an answer may catch."""


def waited_s(task: str = "thread-self") -> float:
    """Seconds that a thread has waited for a processor. task: its id, by default the caller's."""
    try:
        with open(f"/proc/{task}/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class FairClock:
    """Seconds since it was made, without those in which the task waited for a processor."""

    def __init__(self, task: str = "thread-self") -> None:
        self._task = task
        self._waited = waited_s(task)
        self._began = time.monotonic()

    def waited(self) -> float:
        """The seconds that it leaves out."""
        return max(0.0, waited_s(self._task) - self._waited)

    def seconds(self) -> float:
        """The seconds that count."""
        return time.monotonic() - self._began - self.waited()


def crowding() -> float:
    """By how much a busy machine is slower than a quiet one: ready tasks for each processor.

    At most MOST_CROWDED, because submissions that start many processes raise the load, and so the
    limits of those after them.
    """
    try:
        return min(MOST_CROWDED, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
    except OSError:
        return 1.0


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in the body once it has taken that long, by the signal SIGALRM.

    There is a limit only where Jupyter runs cells: in the main thread, on Linux and macOS. A call
    into C is interrupted when it returns. A timer that was set before is set again. In a browser
    `course_pkg.pages.labs.browser` gives the timer.
    """
    if not _has_alarm():
        yield
        return
    began = time.monotonic()
    clock = FairClock()
    active = True

    def stop(*_: Any) -> None:  # if it is too early, the signal comes again
        if active and clock.seconds() >= seconds:
            raise OutOfTime

    handler = signal.signal(signal.SIGALRM, stop)
    before, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        try:
            yield
        finally:
            active = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)
        if before:
            left = before - (time.monotonic() - began)
            signal.setitimer(signal.ITIMER_REAL, max(left, 0.001), interval)


def _has_alarm() -> bool:
    """Whether a timer's signal can interrupt the code that runs here."""
    if not hasattr(signal, "setitimer"):  # Windows
        return False
    import threading

    return threading.current_thread() is threading.main_thread()
