"""How long work has taken, apart from what it waited for processors that others used.

A limit on an answer or a cell must not depend on what else the machine does. The kernel of Linux
counts for each thread how long it was ready to run and did not; elsewhere that counts as 0.

Chapter: appendix/for-instructors.
"""

import os
import time

MOST_CROWDED = 10.0


def waited_s(task: str = "thread-self") -> float:
    """Seconds that a thread has waited for a processor. task: its id, by default the caller's.

    >>> waited_s("no-such-task")
    0.0
    """
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

    From 1 to MOST_CROWDED, because submissions that start many processes raise the load, and so the
    limits of those after them.

    >>> 1 <= crowding() <= MOST_CROWDED
    True
    """
    try:
        return min(MOST_CROWDED, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
    except OSError:
        return 1.0
