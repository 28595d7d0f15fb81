"""A sandbox with its limits, and one child of a warm parent in it: everything to end it again.

`Pen` puts the walls, the limits and the child together, and takes them apart in the right order.
Without walls (`view` is None) a child only gets limits and a process group of its own: that is no
protection, and whoever asks for it must say so.

Chapter: appendix/threat-model.
"""

import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .limits import Limits, fence
from .policy import View, walls
from .walls import Walls
from .warm import WarmParent


class Pen:
    """Walls and limits for one child. Use as a context manager.

    view: what can be seen inside; None for no walls. uid: the user inside if the caller is root.
    name: of the limits, for whoever looks at the machine. Raises SandboxFailed.
    """

    def __init__(self, view: View | None, uid: int | None, limits: Limits, name: str) -> None:
        self.limits, self._uid, self._child = limits, uid, 0
        self.walls = None
        self._ending, self._closed = threading.Lock(), False
        self.fence = fence(limits, name)
        try:
            if view is not None:
                self.walls = Walls(walls(view, uid))
        except BaseException:
            self.fence.close()
            raise

    @property
    def kept_by(self) -> str:
        """Who keeps the limits on memory and processes: a kind of fence, or nobody."""
        return "none" if self.walls is None and not self.fence.join else self.fence.kind

    def put(self, parent: WarmParent, job: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Have the warm parent fork the child, which enters and runs `job`."""
        self._child = parent.fork(
            job,
            descriptors,
            pidfd=None if self.walls is None else self.walls.pidfd,
            fence=self.fence.join,
            uid=self._uid,
            limits=self.limits,
        )
        if self.walls is not None:
            self.fence.watch(self.walls.init, self._child)

    def end(self) -> None:
        """Kill everything inside and wait until it is gone. May be called again, by any thread."""
        with self._ending:
            if not self._closed:
                self._end()

    def _end(self) -> None:
        if self.walls is not None:
            self.walls.close()
        elif self._child:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child, signal.SIGKILL)
        self.fence.kill()

    def __enter__(self) -> "Pen":
        return self

    def __exit__(self, *_: object) -> None:
        with self._ending:
            self._end()
            self._closed = True
            self.fence.close()
