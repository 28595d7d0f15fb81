"""What a confined process may see and use: the command line that bubblewrap is given.

This is the wall around nbgrader as a whole, for a class whose submissions the course wrote
itself: no network, a read-only system, and nothing to write on but the folders named. It does not
part one submission from another, and sets no limits on memory, processes or time.
"""

from collections.abc import Iterable
from pathlib import Path

from .probe import find_bubblewrap


def confined(command: list[str], writable: Iterable[Path] = ()) -> list[str]:
    """`command`, run by bubblewrap without network on a read-only system.

    writable: folders that stay writable. Raises FileNotFoundError where there is no bubblewrap.
    Chapter: appendix/for-instructors.

    >>> confined(["true"])[-2:]
    ['--', 'true']
    """
    bubblewrap = find_bubblewrap()
    if bubblewrap is None:
        raise FileNotFoundError("bubblewrap is not installed: apt-get install bubblewrap")
    walls = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for folder in map(str, writable):
        walls += ["--bind", folder, folder]
    shut = ["--unshare-net", "--unshare-ipc", "--unshare-pid", "--die-with-parent", "--new-session"]
    return [str(bubblewrap), *walls, *shut, "--", *command]
