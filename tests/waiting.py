"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until a condition holds; fail if it takes longer."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"it did not happen within {seconds:g} seconds"
        time.sleep(0.005)
