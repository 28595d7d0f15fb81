"""One sandboxed process: its namespaces, its resource limits, and how to end it."""

import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from course_pkg.sandbox.fork_server import ForkServer
from course_pkg.sandbox.limits import ResourceLimits, limit_enforcer
from course_pkg.sandbox.namespaces import Namespaces
from course_pkg.sandbox.policy import View, bubblewrap_command


class SandboxedProcess:
    """Namespaces and resource limits for one process. Use as a context manager.

    Args:
        view: the files that the process can see; None for no namespaces: limits and a process group
            protect nothing, and callers must ask for that explicitly.
        uid: the user inside, if the caller is root.
        name: of the limits, as an administrator sees it.
    """

    def __init__(
        self, view: View | None, uid: int | None, limits: ResourceLimits, name: str
    ) -> None:
        self._limits = limits
        self._uid = uid
        self._pid = 0
        self._lock = threading.Lock()
        self._closed = False
        self.namespaces = None
        self.enforcer = limit_enforcer(limits, name)
        try:
            if view is not None:
                self.namespaces = Namespaces(bubblewrap_command(view, uid))
        except BaseException:
            self.enforcer.close()
            raise

    @property
    def enforced_by(self) -> str:
        """What enforces the limits on memory and processes: a kind of enforcer, or "none"."""
        enforced = self.namespaces is not None or self.enforcer.join_descriptors
        return self.enforcer.kind if enforced else "none"

    def start(self, server: ForkServer, job: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Have the fork server fork the process, which enters the sandbox and runs `job`."""
        self._pid = server.fork(
            job,
            descriptors,
            pidfd=None if self.namespaces is None else self.namespaces.pidfd,
            join=self.enforcer.join_descriptors,
            uid=self._uid,
            limits=self._limits,
        )
        if self.namespaces is not None:
            self.enforcer.watch(self.namespaces.init, self._pid)

    def kill(self) -> None:
        """Kill everything inside and wait until it is gone. Any thread may call it, repeatedly."""
        with self._lock:
            if not self._closed:
                self._kill()

    def _kill(self) -> None:
        if self.namespaces is not None:
            self.namespaces.close()
        elif self._pid:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        self.enforcer.kill()

    def __enter__(self) -> "SandboxedProcess":
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._kill()
            self._closed = True
            self.enforcer.close()
