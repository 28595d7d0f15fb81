"""A fork server: a process that imports slow modules once, and forks children that have them.

Each child enters its own sandbox (`enter`) and runs the target function there. The server itself
(`fork_process`) runs no untrusted code, holds no secret, starts no thread and no CUDA context, and
its children can't trace it. It ends with the process that started it.
"""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from course_pkg.sandbox import fork_process
from course_pkg.sandbox.fork_process import MALLOC, MAX_MESSAGE
from course_pkg.sandbox.limits import ResourceLimits
from course_pkg.sandbox.namespaces import SandboxFailed
from course_pkg.sandbox.waiting import hung_up

LAST_LINES = 3  # of the server's own error messages
DOCTOR = "run `course doctor`"
KILLED = (
    "most often because the machine or its container has too little memory: close other programs, "
    "or allow the container 4 GB"
)
_ADVICE = {  # by what the error says
    r"No module named '([\w.]+)'": (
        "the package {0} is missing from this Python: run `make setup`, or pip install it"
    ),
    r"MemoryError|[Cc]annot allocate memory|std::bad_alloc|\[Errno 12\]": (
        "it got no more memory: `ulimit -v` should be unlimited, and `free -h` above 2 GB"
    ),
    r"Resource temporarily unavailable|can't start new thread|\[Errno 11\]": (
        "it could start no more processes: raise `ulimit -u`, or the pids limit of the container"
    ),
    r"Too many open files|\[Errno 24\]": "it could open no more files: raise `ulimit -n`",
    r"No space left on device|\[Errno 28\]": (
        "the disk is full: free some space in the course's folder and in the temporary folder"
    ),
    "cannot open shared object file|undefined symbol|ImportError": (
        "a library of this Python does not load: run `make distclean`, then `make`"
    ),
    r"Permission denied|Operation not permitted|\[Errno 1\]|\[Errno 13\]": (
        f"the system does not permit something that it needs: {DOCTOR}"
    ),
}
START_WITHIN_S = 120.0
SEND_WITHIN_S = 60.0


def why_not_started(code: int | None, errors: str, waited_s: float) -> str:
    """Why a fork server did not start, in one or a few lines that end with what to do.

    Args:
        code: its exit code, negative for a signal; None if it still ran after `waited_s` seconds.
        errors: what it wrote to stderr.
    """
    if code is None:
        how = f"it had not imported its modules after {waited_s:.0f} s"
        return f"{how} (the machine or its disk is too slow or busy: try again)"
    if code == -signal.SIGKILL:
        return f"it was killed ({KILLED})"
    lines = [line for line in errors.strip().splitlines() if line.strip()][-LAST_LINES:]
    reasons = [line.strip()[:500] for line in lines if not line.startswith((" ", "Traceback"))]
    said = "\n".join(reasons or lines)
    if not said:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"it ended with {how} and said nothing ({DOCTOR})"
    for pattern, advice in _ADVICE.items():
        if match := re.search(pattern, errors):
            return f"{said} ({advice.format(*match.groups())})"
    return f"{said} ({DOCTOR})"


class ForkServer:
    """The client side of a fork server; several threads may use it.

    Args:
        target: "module:function", which children run as `function(job, descriptors)`.
        preload: modules to import once, for all children; "module:function:argument" also calls a
            function.
        env: all environment variables of the server.
        forked_by: a server that forks this one, when it has imported its modules; this one has them
            too, and ends with that server. Neither forks the other's children.
    """

    def __init__(
        self,
        target: str,
        preload: Sequence[str],
        env: dict[str, str] | None = None,
        *,
        forked_by: "ForkServer | None" = None,
    ) -> None:
        self._lock = threading.Lock()
        self._requests = 0
        self._ready = False
        self._forked_by = forked_by
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = mine
        with theirs:
            if forked_by is None:
                self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (open while it runs)
                program = [sys.executable, "-P", "-m", fork_process.__name__]
                self._process = subprocess.Popen(
                    [*program, str(theirs.fileno()), target, *preload],
                    env={**(os.environ if env is None else env), **MALLOC},
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    pass_fds=[theirs.fileno()],
                )
            else:
                self._errors = forked_by._errors
                self._process = forked_by._process
                with forked_by._lock, suppress(OSError):  # `ready` says what is wrong
                    forked_by._request({"server": [target, *preload]}, [theirs.fileno()])

    def ready(self) -> None:
        """Wait until everything is imported. Raises SandboxFailed, with the reason, on failure."""
        self._socket.settimeout(START_WITHIN_S)
        too_slow = False
        try:
            self._ready = self._ready or self._socket.recv(MAX_MESSAGE) == b"ready"
        except TimeoutError:
            too_slow = True
        except ConnectionError:
            pass
        if not self._ready:
            with suppress(subprocess.TimeoutExpired):  # it closes its socket just before it ends
                self._process.wait(1)
            self._errors.seek(0)
            errors = self._errors.read().decode(errors="replace")[-20_000:]
            code = self._process.poll()
            if code is None and not too_slow:  # another server forked it; killed, it is silent
                code = 1 if errors else -signal.SIGKILL
            self.close()
            why = why_not_started(code, errors, START_WITHIN_S)
            raise SandboxFailed(f"a fork server did not start: {why}")

    def fork(
        self,
        job: dict[str, Any],
        descriptors: Sequence[int],
        *,
        pidfd: int | None,
        join: Sequence[int],
        uid: int | None,
        limits: ResourceLimits,
    ) -> int:
        """Fork a child that enters the sandbox of `pidfd` and runs the target there; its id.

        Args:
            job: small and plain, sent as JSON.
            descriptors: for the child, in this order; it writes {"failed": reason} to the first if
                it can't enter.
            pidfd: None for no namespaces. join, uid and limits: as for `enter`.
        """
        sandbox = [*([] if pidfd is None else [pidfd]), *join]
        request = {"job": job, "uid": uid, "limits": asdict(limits)}
        request |= {"namespaces": pidfd is not None, "sandbox_descriptors": len(sandbox)}
        try:
            with self._lock:
                self._request(request, [*sandbox, *descriptors])
                number = child = 0
                while number < self._requests:  # skip answers to earlier requests
                    answer = self._socket.recv(MAX_MESSAGE)
                    if not answer:
                        raise SandboxFailed("the fork server has ended")
                    number, child = map(int, answer.split())
        except ConnectionError:
            raise SandboxFailed("the fork server has ended") from None
        except OSError as error:
            raise SandboxFailed(f"the fork server does not answer: {error}") from None
        return child

    def _request(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Send a request with the next number; the lock is held."""
        self._requests += 1
        message = json.dumps(request | {"number": self._requests}).encode()
        if len(message) > MAX_MESSAGE:
            raise ValueError(f"a job of {len(message):,} bytes; expected at most {MAX_MESSAGE:,}")
        until = time.monotonic() + SEND_WITHIN_S
        while True:
            try:
                socket.send_fds(self._socket, [message], descriptors)
                return
            except OSError as error:  # too many are in transit between this user's sockets
                if error.errno != errno.ETOOMANYREFS or time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def alive(self) -> bool:
        return self._socket.fileno() >= 0 and not hung_up(self._socket.fileno())

    def close(self) -> None:
        """End the fork server, and wait for it if none forked it. May be called again."""
        self._socket.close()
        if self._forked_by is not None:
            return
        if self._ready:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
