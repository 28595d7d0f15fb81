"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable


def wait_until(
    holds: Callable[[], object], seconds: float = 200.0, shows: Callable[[], object] = str
) -> None:
    """Wait until a condition holds.

    seconds: only so that nothing hangs; far more than a busy machine needs. shows: what else to say
    if it never holds.
    """
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"it did not happen within {seconds:g} seconds {shows()}"
        time.sleep(0.005)
