"""Wait for a file descriptor with any number: `select` accepts none above 1,023.

Chapter: appendix/threat-model.
"""

import select


def readable(descriptor: int, seconds: float) -> bool:
    """Whether a descriptor has data, or is at its end, within `seconds`.

    For a process's descriptor (a pidfd): whether the process has ended.

    >>> import os
    >>> end, other = os.pipe()
    >>> readable(end, 0.01), os.write(other, b"x"), readable(end, 0.01)
    (False, 1, True)
    >>> os.close(end), os.close(other)
    (None, None)
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))
