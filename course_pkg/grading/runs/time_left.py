"""How long a run will still take, from the submissions that it has finished.

Chapter: appendix/for-instructors.
"""

import math
from collections import deque

WINDOW = 500  # the last submissions, as later ones may take longer
RECENT = 50  # of them, for how many run at a time: workers of a cluster come and go


class TimeLeft:
    """Estimates the time left of a run of several submissions at a time.

    The mean time of a submission, times those that have not started, divided by how many run at a
    time (Little's law), plus the rest of those that run. The time of a submission includes waiting
    for its results to be written, so the estimate holds whatever the bottleneck is.

    >>> left = TimeLeft()
    >>> left.finished(10.0, at_once=2)
    >>> left.seconds(waiting=7, running=[0.0, 5.0])
    42.5
    """

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=WINDOW)
        self._at_once: deque[int] = deque(maxlen=RECENT)

    def finished(self, seconds: float, at_once: int) -> None:
        """A submission took so long; at_once: how many were running when it ended, itself too."""
        self._last.append(seconds)
        self._at_once.append(at_once)

    def seconds(self, waiting: int, running: list[float]) -> float | None:
        """Seconds until the last one ends; None before the first one has ended.

        waiting: submissions that have not started. running: for how long the others have run. One
        that has run for longer than the mean counts in the mean, so a slow one is not forgotten.
        """
        if not self._last:
            return None
        times = list(self._last)
        mean = math.fsum(times) / len(times)
        times += [seconds for seconds in running if seconds > mean]
        mean = math.fsum(times) / len(times)
        rest = math.fsum(max(mean - seconds, 0.0) for seconds in running)
        return (waiting * mean + rest) / max(1, min(max(self._at_once), waiting + len(running)))


def in_words(seconds: float) -> str:
    """A duration as one would say it.

    >>> [in_words(s) for s in (4, 42, 100, 3_000, 4_000, 36_000)]
    ['10 s', '40 s', '2 min', '50 min', '1 h 5 min', '10 h']
    """
    if seconds < 55:
        return f"{max(10, 10 * round(seconds / 10))} s"
    minutes = math.ceil(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    minutes = 5 * round(seconds / 300)
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
