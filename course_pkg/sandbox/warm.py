"""The warm parent: a process that has imported what is slow to import, and forks from itself.

`WarmParent` starts one and asks it for children; each child enters a sandbox of its own (`enter`)
and there runs the target function. The warm parent runs no student's code, holds no secret, starts
no thread and no CUDA context, and can't be traced by its children. It speaks only to the process
that started it, over an inherited socket, and ends with it.

`python -m course_pkg.sandbox.warm FD MODULE:FUNCTION [MODULE …]` is the warm parent itself.

Chapter: appendix/threat-model.
"""

import errno
import gc
import importlib
import json
import os
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

from .enter import PR_SET_DUMPABLE, PR_SET_PDEATHSIG, enter, libc, stay_outside
from .limits import Limits
from .walls import SandboxFailed

MAX_MESSAGE = 64 * 1024
MAX_DESCRIPTORS = 16
START_WITHIN_S = 120.0
SEND_WITHIN_S = 60.0


class WarmParent:
    """A warm parent, from the side of the process that started it. Threads may share it.

    target: "module:function" that children run as `function(job, descriptors)`. preload: modules
    imported once, for all children. env: the parent's whole environment. It starts at once, and
    `ready` waits for it.
    """

    def __init__(self, target: str, preload: Sequence[str], env: dict[str, str]) -> None:
        self._lock = threading.Lock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as this)
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            line = [sys.executable, "-P", "-m", "course_pkg.sandbox.warm", str(number), target]
            self._process = subprocess.Popen(
                [*line, *preload],
                env=env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[number],
            )
        self._socket = mine
        self._asked = 0
        self._ready = False

    def ready(self) -> None:
        """Wait until everything is imported. Raises SandboxFailed, with why, if that fails."""
        self._socket.settimeout(START_WITHIN_S)
        with suppress(TimeoutError):
            self._ready = self._ready or self._socket.recv(MAX_MESSAGE) == b"ready"
        if not self._ready:
            self.close()
            self._errors.seek(0)
            words = self._errors.read().decode(errors="replace").strip()[-2000:]
            raise SandboxFailed(f"a warm parent did not start: {words}")

    def fork(
        self,
        job: dict[str, Any],
        descriptors: Sequence[int],
        *,
        pidfd: int | None,
        fence: Sequence[int],
        uid: int | None,
        limits: Limits,
    ) -> int:
        """Fork a child that enters the sandbox of `pidfd` and runs the target on `job` there.

        job: small and plain, it crosses as JSON. descriptors: the child's, in this order; to the
        first it writes {"failed": why} if it can't enter. fence, uid and limits as for `enter`.
        pidfd: None for no sandbox at all. Gives the child's process id. Raises SandboxFailed if the
        parent is gone.
        """
        gates = [*([] if pidfd is None else [pidfd]), *fence]
        request = {"job": job, "uid": uid, "limits": asdict(limits), "gates": len(gates)}
        request["walls"] = pidfd is not None
        try:
            with self._lock:
                self._asked += 1
                message = json.dumps(request | {"number": self._asked}).encode()
                if len(message) > MAX_MESSAGE:
                    raise ValueError(f"a job of {len(message):,} bytes; at most {MAX_MESSAGE:,}")
                self._send(message, [*gates, *descriptors])
                number = child = 0
                while number < self._asked:  # an answer that came too late is to an earlier one
                    answer = self._socket.recv(MAX_MESSAGE)
                    if not answer:
                        raise SandboxFailed("the warm parent has ended")
                    number, child = map(int, answer.split())
        except OSError as error:
            raise SandboxFailed(f"the warm parent does not answer: {error}") from None
        return child

    def _send(self, message: bytes, descriptors: list[int]) -> None:
        """Send, and again where the system has too many descriptors on their way for a moment."""
        until = time.monotonic() + SEND_WITHIN_S
        while True:
            try:
                socket.send_fds(self._socket, [message], descriptors)
                return
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS or time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def close(self) -> None:
        """End the warm parent, and wait for it. May be called again."""
        self._socket.close()
        if self._ready:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "WarmParent":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(sock: socket.socket, target: Any) -> None:
    """Fork a child for every request until the other end closes."""
    sock.send(b"ready")
    while True:
        message, received, _, _ = socket.recv_fds(sock, MAX_MESSAGE, MAX_DESCRIPTORS)
        if not message:
            return
        request = json.loads(message)
        child = os.fork()
        if child == 0:
            _child(request, received, target)
        for descriptor in received:
            os.close(descriptor)
        sock.send(b"%d %d" % (request["number"], child))


def _child(request: dict[str, Any], received: list[int], target: Any) -> None:
    """In a child: enter the sandbox, run the target, and end, whatever happens."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        tempfile.tempdir = None  # the parent's own is not there inside
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        gates = received[: request["gates"]]
        given = received[request["gates"] :]
        limits = Limits(**request["limits"])
        try:
            if request["walls"]:
                enter(gates[0], gates[1:], given, request["uid"], limits)
            else:
                stay_outside(gates, given)
            target(request["job"], given)
        except Exception as error:
            text = json.dumps({"failed": f"{type(error).__name__}: {error}"[:1000]})
            os.write(given[0], text.encode() + b"\n")
            raise
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        os._exit(code)


def main(arguments: list[str]) -> None:
    """Import what was named, then serve."""
    descriptor, target, *preload = arguments
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that started this
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects the children
    for name in preload:
        importlib.import_module(name)
    module, _, function = target.partition(":")
    run = getattr(importlib.import_module(module), function)
    gc.collect()
    gc.freeze()  # or collecting garbage in a child would copy the parent's memory
    with socket.socket(fileno=int(descriptor)) as sock:
        serve(sock, run)
    os._exit(0)  # to take a library like torch down in order takes long, and is of no use


if __name__ == "__main__":
    main(sys.argv[1:])
