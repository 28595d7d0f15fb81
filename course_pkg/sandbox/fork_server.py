"""A fork server: a process that imports slow modules once, and forks children that have them.

`ForkServer` starts one and asks it for children; each child enters its own sandbox (`enter`) and
runs the target function there. The fork server itself runs no untrusted code, holds no secret,
starts no thread and no CUDA context, and its children can't trace it. It talks only to the process
that started it, over an inherited socket, and ends with that process.

`python -m course_pkg.sandbox.fork_server FD MODULE:FUNCTION [MODULE …]` is the server process.

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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from .enter import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    enter,
    enter_limits_only,
    libc,
)
from .failures import why_not_started
from .limits import ResourceLimits
from .namespaces import SandboxFailed

MAX_MESSAGE = 64 * 1024
MAX_DESCRIPTORS = 16
START_WITHIN_S = 120.0
SEND_WITHIN_S = 60.0

Target = Callable[[dict[str, Any], list[int]], None]


class ForkServer:
    """The client side of a fork server; several threads may use it.

    target: "module:function", which children run as `function(job, descriptors)`. preload: modules
    to import once, for all children. env: all environment variables of the server. The server
    starts at once, and `ready` waits for it.
    """

    def __init__(self, target: str, preload: Sequence[str], env: dict[str, str]) -> None:
        self._lock = threading.Lock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the server runs)
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            line = [sys.executable, "-P", "-m", __name__, str(number), target]
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
        self._requests = 0
        self._ready = False

    def ready(self) -> None:
        """Wait until everything is imported. Raises SandboxFailed, with the reason, on failure."""
        self._socket.settimeout(START_WITHIN_S)
        with suppress(TimeoutError, ConnectionError):
            self._ready = self._ready or self._socket.recv(MAX_MESSAGE) == b"ready"
        if not self._ready:
            with suppress(subprocess.TimeoutExpired):  # it closes its socket just before it ends
                self._process.wait(1)
            code = self._process.poll()
            self.close()
            self._errors.seek(0)
            errors = self._errors.read().decode(errors="replace")[-20_000:]
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
        """Fork a child that enters the sandbox of `pidfd` and runs the target on `job` there.

        job: small and plain, sent as JSON. descriptors: for the child, in this order; it writes
        {"failed": reason} to the first if it can't enter. pidfd: None for no namespaces. join, uid
        and limits: as for `enter`. Returns the child's process id. Raises SandboxFailed if the
        fork server is gone, ValueError if the job is too large.
        """
        sandbox = [*([] if pidfd is None else [pidfd]), *join]
        request = {"job": job, "uid": uid, "limits": asdict(limits)}
        request |= {"namespaces": pidfd is not None, "sandbox_descriptors": len(sandbox)}
        try:
            with self._lock:
                self._requests += 1
                message = json.dumps(request | {"number": self._requests}).encode()
                if len(message) > MAX_MESSAGE:
                    size = f"{len(message):,} bytes; expected at most {MAX_MESSAGE:,}"
                    raise ValueError(f"a job of {size}")
                self._send(message, [*sandbox, *descriptors])
                number = child = 0
                while number < self._requests:  # skip late answers to earlier requests
                    answer = self._socket.recv(MAX_MESSAGE)
                    if not answer:
                        raise SandboxFailed("the fork server has ended")
                    number, child = map(int, answer.split())
        except OSError as error:
            raise SandboxFailed(f"the fork server does not answer: {error}") from None
        return child

    def _send(self, message: bytes, descriptors: list[int]) -> None:
        """Send, and retry while too many descriptors are in transit between this user's sockets."""
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
        """End the fork server and wait for it. May be called again."""
        self._socket.close()
        if self._ready:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(sock: socket.socket, target: Target) -> None:
    """Fork a child for every request, until the client closes the socket."""
    sock.send(b"ready")
    while True:
        message, received, _, _ = socket.recv_fds(sock, MAX_MESSAGE, MAX_DESCRIPTORS)
        if not message:
            return
        request = json.loads(message)
        child = os.fork()
        if child == 0:
            _run_child(request, received, target)
        for descriptor in received:
            os.close(descriptor)
        sock.send(b"%d %d" % (request["number"], child))


def _run_child(request: dict[str, Any], received: list[int], target: Target) -> None:
    """In a child: enter the sandbox, run the target, and exit in every case."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        tempfile.tempdir = None  # the server's own folder does not exist inside
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        count = request["sandbox_descriptors"]
        sandbox, descriptors = received[:count], received[count:]
        try:
            if request["namespaces"]:
                pidfd, *join = sandbox
                limits = ResourceLimits(**request["limits"])
                enter(pidfd, join, descriptors, request["uid"], limits)
            else:
                enter_limits_only(sandbox, descriptors)
            target(request["job"], descriptors)
        except Exception as error:
            text = json.dumps({"failed": f"{type(error).__name__}: {error}"[:1000]})
            os.write(descriptors[0], text.encode() + b"\n")
            raise
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        os._exit(code)


def main(arguments: list[str]) -> None:
    """The server process: import the named modules, then serve."""
    descriptor, target, *preload = arguments
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this
    # The kernel collects the children, and theirs if their parent is killed: a process that nobody
    # collects would keep its namespace from ending.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for name in preload:
        importlib.import_module(name)
    module, _, function = target.partition(":")
    run = getattr(importlib.import_module(module), function)
    gc.collect()
    gc.freeze()  # or a garbage collection in a child would copy the server's memory
    with socket.socket(fileno=int(descriptor)) as sock:
        serve(sock, run)
    os._exit(0)  # skip the shutdown of libraries such as torch, which takes long


if __name__ == "__main__":
    main(sys.argv[1:])
