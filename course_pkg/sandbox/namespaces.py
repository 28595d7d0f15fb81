"""The namespaces of one sandbox: bubblewrap creates them and waits inside.

Every sandbox has its own, so two share nothing. Killing the first process of a sandbox kills all
processes in it.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import BinaryIO

from course_pkg.common.errors import FailedError
from course_pkg.sandbox.policy import Argument
from course_pkg.sandbox.waiting import readable

READY_WITHIN_S = 20.0
END_WITHIN_S = 30.0


class SandboxFailed(FailedError, RuntimeError):
    """A sandbox could not be created, or the process for it could not be started."""


class Namespaces:
    """Namespaces that bubblewrap has created, or SandboxFailed with its message. A context manager.

    init: the process id, outside, of the sandbox's first process. pidfd: a descriptor of that
    process, through which a forked child enters (`enter`).
    """

    def __init__(self, command: Sequence[Argument]) -> None:
        self.pidfd = -1
        info, info_write = os.pipe()
        with ExitStack() as stack:
            stack.callback(os.close, info_write)
            passed = [info_write]

            def descriptor_of(content: bytes) -> str:
                file = stack.enter_context(memory_file(content))
                passed.append(file.fileno())
                return str(file.fileno())

            line = [descriptor_of(part) if isinstance(part, bytes) else part for part in command]
            end = line.index("--")
            # In a file, because processes inside can read the command line in /proc/1/cmdline.
            arguments = descriptor_of(b"".join(part.encode() + b"\0" for part in line[1:end]))
            self._process = subprocess.Popen(
                [line[0], "--info-fd", str(info_write), "--args", arguments, *line[end:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,  # or an unsent byte would make closing fail, after bubblewrap has failed
                pass_fds=passed,
            )
        try:
            self.init = self._wait_until_built(info)
            self.pidfd = os.pidfd_open(self.init)
        except (OSError, SandboxFailed, ValueError) as error:
            self._process.kill()
            message = self._process.stderr.read().decode(errors="replace").strip()
            self.close()
            raise SandboxFailed(
                f"bubblewrap could not create a sandbox: {message or error}"
            ) from None
        finally:
            os.close(info)

    def _wait_until_built(self, info: int) -> int:
        """The first process's id. When all is in place, bubblewrap starts `cat`: it echoes."""
        self._process.stdin.write(b"x")
        until = time.monotonic() + READY_WITHIN_S
        ready = readable(self._process.stdout.fileno(), until - time.monotonic())
        if not ready or self._process.stdout.read(1) != b"x":
            raise SandboxFailed("it ended" if ready else "it did not start in time")
        return int(json.loads(os.read(info, 4096))["child-pid"])

    def close(self) -> None:
        """Kill every process inside and wait until the last is gone. May be called again.

        The wait is limited: a process that nobody collects, because the fork server was killed,
        keeps the namespaces, although nothing runs in them.
        """
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        else:
            self._process.kill()
        try:
            self._process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            stream.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def __enter__(self) -> "Namespaces":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def memory_file(content: bytes) -> BinaryIO:
    """An unbuffered file in memory with this content, positioned at its start."""
    file = os.fdopen(os.memfd_create("course"), "w+b", 0)
    file.write(content)
    file.seek(0)
    return file
