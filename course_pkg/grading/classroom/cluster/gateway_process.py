"""Starts the gateway to a cluster, which reads pickles from machines that are not trusted.

It is confined like a submission, except that it has the network: it can write only to one small
folder in memory, and as root it becomes a user that owns nothing (`gateway_main`).

Chapter: appendix/threat-model.
"""

import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from course_pkg.sandbox import policy, seccomp
from course_pkg.sandbox.namespaces import memory_file
from course_pkg.sandbox.probe import find_bubblewrap

PACKAGE = Path(__file__).resolve().parents[3]
MODULE = "course_pkg.grading.classroom.cluster.gateway_main"
ETC = (
    "hosts",
    "nsswitch.conf",
    "host.conf",
    "gai.conf",
    "passwd",
    "group",
    "dask",
    "ld.so.cache",
    "localtime",
    "ssl/openssl.cnf",
)
DISK = 64 * 2**20  # bytes that it may write
LAST_WORDS = 600  # bytes of what it wrote before it died
END_WITHIN_S = 10.0


def gateway_command(descriptor: int, calls: int | None = None) -> list[str]:
    """The command line: this Python with the network, but without the course, or any home.

    descriptor: the gateway's end of the socket. calls: a descriptor of `seccomp.program`, if there
    is one for this machine.
    """
    line = [str(find_bubblewrap()), "--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL"]
    if os.geteuid() == 0:  # to become somebody else, who has none
        line += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    if calls is not None:
        line += ["--seccomp", str(calls)]
    line += ["--new-session", "--proc", "/proc"]
    for name in policy.PROC:
        line += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    line += ["--dev", "/dev", "--perms", "1777", "--size", str(DISK), "--tmpfs", "/tmp"]
    for path in policy.SYSTEM:
        line += ["--ro-bind-try", path, path]
    for name in ETC:
        line += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    line += ["--ro-bind-try", os.path.realpath("/etc/resolv.conf"), "/etc/resolv.conf"]
    for path in policy.python_folders():
        for folder in reversed(path.parents):
            line += ["--dir", str(folder)]  # or bubblewrap creates it, readable by root only
        line += ["--ro-bind", str(path), str(path)]
    for path in policy.private_paths():
        line += ["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]
    line += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]
    return [*line, "--", sys.executable, "-P", "-m", MODULE, str(descriptor)]


class GatewayProcess:
    """A running gateway. sock: the command's end of the socket to it."""

    def __init__(self) -> None:
        self.sock, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (open while it runs)
        settings = {name: text for name, text in os.environ.items() if name.startswith("DASK_")}
        extra = {"HOME": "/tmp", "PYTHONPATH": str(PACKAGE.parent)}
        with theirs, ExitStack() as stack:
            passed = [theirs.fileno()]
            if platform.machine() in seccomp.ARCHITECTURES:
                calls = memory_file(seccomp.program(platform.machine()))
                passed.append(stack.enter_context(calls).fileno())
            self._process = subprocess.Popen(
                gateway_command(*passed),
                env=settings | policy.environment(extra),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=passed,
                start_new_session=True,  # Ctrl-C is for the command, which then ends it
            )

    def last_words(self) -> str:
        """The end of what it wrote to its standard error."""
        size = os.fstat(self._errors.fileno()).st_size
        end = os.pread(self._errors.fileno(), LAST_WORDS, max(0, size - LAST_WORDS))
        return end.decode(errors="replace").strip()

    def end(self) -> None:
        """End it: at the end of its socket it cancels what runs, for which it has some seconds."""
        with suppress(OSError):  # it has ended
            self.sock.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._kill()
        with suppress(OSError):  # a process of it that is left may keep its end open
            self.sock.shutdown(socket.SHUT_RDWR)

    def _kill(self) -> None:
        """Kill it, with all of its namespace: the first process there is bubblewrap's child."""
        pid = self._process.pid
        with suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Close the files, after `end`."""
        self.sock.close()
        self._errors.close()
