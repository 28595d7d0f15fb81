"""One sandbox, from outside: bubblewrap builds it and waits in it; ending it kills all inside.

`Walls` starts bubblewrap with a policy and gives a descriptor of the process that a forked child
then enters by (`enter`). Every sandbox has namespaces of its own, so two of them share nothing.

Chapter: appendix/threat-model.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from .policy import Argument
from .waiting import readable

READY_WITHIN_S = 20.0


class SandboxFailed(RuntimeError):
    """A sandbox could not be built, or what should have entered it did not."""


class Walls:
    """A sandbox that bubblewrap has built. Use as a context manager.

    init: the process id, outside, of the sandbox's first process. pidfd: a descriptor of it.
    Raises SandboxFailed, with bubblewrap's own words, where it can't be built.
    """

    def __init__(self, command: Sequence[Argument]) -> None:
        self.pidfd = -1
        files = [_file(part) for part in command if isinstance(part, bytes)]
        numbers = iter(files)
        line = [str(next(numbers)) if isinstance(part, bytes) else part for part in command]
        end = line.index("--")
        # Through a file: what stands on a command line can be read inside, in /proc/1/cmdline.
        files.append(_file(b"".join(part.encode() + b"\0" for part in line[1:end])))
        info, told = os.pipe()
        try:
            self._process = subprocess.Popen(
                [line[0], "--info-fd", str(told), "--args", str(files[-1]), *line[end:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[told, *files],
            )
        finally:
            for descriptor in (told, *files):
                os.close(descriptor)
        try:
            self.init = self._wait(info)
            self.pidfd = os.pidfd_open(self.init)
        except (OSError, SandboxFailed, ValueError) as error:
            self._process.kill()
            words = self._process.stderr.read().decode(errors="replace").strip()
            self.close()
            raise SandboxFailed(f"bubblewrap built no sandbox: {words or error}") from None
        finally:
            os.close(info)

    def _wait(self, info: int) -> int:
        """The first process's id, once everything is in place: then `cat` echoes a byte."""
        self._process.stdin.write(b"x")
        self._process.stdin.flush()
        until = time.monotonic() + READY_WITHIN_S
        ready = readable(self._process.stdout.fileno(), until - time.monotonic())
        if not ready or self._process.stdout.read(1) != b"x":
            raise SandboxFailed("it did not start in time" if not ready else "it ended")
        return int(json.loads(os.read(info, 4096))["child-pid"])

    def kill(self) -> None:
        """End every process inside, at once. May be called again."""
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """End every process inside, and wait until the last is gone. May be called again."""
        self.kill()
        if self.pidfd < 0:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            stream.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def __enter__(self) -> "Walls":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _file(content: bytes) -> int:
    """A descriptor of a file in memory with this content, at its beginning."""
    descriptor = os.memfd_create("course")
    with os.fdopen(os.dup(descriptor), "wb") as out:
        out.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
