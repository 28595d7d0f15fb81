"""Limits on what one answer may take: seconds, and the size of its values.

An endless loop must end, and a value that is far larger than the right one is refused before
anything compares or shows it.

Chapter: appendix/for-instructors.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from course_pkg.files import readable_size

from .comparators import describe_type
from .values import Array

ROOM = 256 * 1024  # bytes that a value may have, plus 8 times as many as the expected one
MAX_ERROR = 1_000  # characters of an error that are kept
_AGAIN_S = 1.0  # the signal is repeated, since `except:` in an answer may swallow one


class OutOfTime(BaseException):
    """The time limit was reached. Not an Exception: an answer that catches those must end too."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in the body once it has taken that long, by the signal SIGALRM.

    Works where Jupyter runs cells: in the main thread, on Linux and macOS. Elsewhere there is no
    limit. A call into C is interrupted when it returns. A timer that was set before is set again.

    >>> with time_limit(0.05):
    ...     while True:
    ...         pass
    Traceback (most recent call last):
    ...
    course_pkg.grading.contract.limits.OutOfTime
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return
    began, active = time.monotonic(), True

    def stop(*_: Any) -> None:
        if active:
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


def size(value: Any) -> int:
    """About how many bytes a plain value takes.

    >>> size([1.0, 2.0]), size("é" * 100)
    (48, 216)
    """
    match value:
        case Array():
            return 16 + len(value.data)
        case str():
            return 16 + 2 * len(value)
        case bytes():
            return 16 + len(value)
        case list() | tuple():
            return 16 + sum(map(size, value))
        case dict():
            return 16 + sum(size(key) + size(item) for key, item in value.items())
        case int() if not isinstance(value, bool):
            return 16 + value.bit_length() // 8
    return 16


def within_size(outcome: Any, expected: Any, room: int = ROOM) -> dict[str, Any]:
    """An outcome with nothing but what is judged; a value that is far too large is an error.

    expected: the right value of the case. room: bytes that the value may have, in any case.

    >>> within_size({"value": "é" * 3_000_000}, "yes")["error"]
    'your answer is far too large: a text of about 6 MB was given; expected about 22 B'
    """
    match outcome:
        case {"unanswered": True}:
            return {"unanswered": True}
        case {"error": str(message)}:
            return {"error": message[:MAX_ERROR]}
        case {"value": given}:
            given_size, right_size = size(given), size(expected)
            if given_size <= room + 8 * right_size:
                return {"value": given}
            text = (
                f"your answer is far too large: {describe_type(given)} of about "
                f"{readable_size(given_size)} was given; expected about {readable_size(right_size)}"
            )
            return {"error": text}
    return {}
