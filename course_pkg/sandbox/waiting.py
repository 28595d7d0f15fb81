"""Wait for a file descriptor with any number: `select` accepts none above 1,023."""

import select


def readable(descriptor: int, seconds: float) -> bool:
    """Whether a descriptor has data, or is at its end, within `seconds`.

    For a process's descriptor (a pidfd): whether the process has ended.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def hung_up(descriptor: int) -> bool:
    """Whether the other end of a socket is closed, even if there is something left to read."""
    poll = select.poll()
    poll.register(descriptor, 0)  # a hang-up is reported in any case
    return bool(poll.poll(0))
