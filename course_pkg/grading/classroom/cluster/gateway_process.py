"""The command's end of the gateway: its process, the frames that it sends, and guards against it.

The gateway reads pickles from machines that are not trusted, so a worker may take it over. It is
confined like a submission, except that it has the network. Imports no Dask.
"""

import asyncio
import os
import platform
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from course_pkg.grading.questions.display import one_line
from course_pkg.sandbox import policy, seccomp
from course_pkg.sandbox.namespaces import memory_file
from course_pkg.sandbox.probe import find_bubblewrap

HEAD = struct.Struct("!cIQ")
MAX_NOTE = 4_000
NOTE_LENGTH = 500  # characters of a note
MOST_NOTES = 100  # notes in a run
NOTES_PER_MACHINE = 10  # notes about one machine in a run
NOTES_AT_ONCE = 20  # notes without a pause
NOTE_EVERY_S = 5.0  # after them, one note each time these seconds have passed
MODULE = "course_pkg.grading.classroom.cluster.gateway"
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
UID = 0x6FFF_FFFF  # owns nothing: no account, container or sandbox has this id
DISK = 64 * 2**20  # bytes that it may write, and of a file, such as standard error
MEMORY = 8 * 2**30  # bytes of address space: a reply can't fill the machine
LAST_WORDS = 600  # bytes of what it wrote before it died
END_WITHIN_S = 10.0


class FrameKind(bytes, Enum):
    """What a frame is: the first two come from the command, the others from the gateway."""

    START = b"s"
    SUBMIT = b"t"
    ROOM = b"r"  # how many submissions may be sent
    REPLY = b"a"  # a worker's reply about a submission
    GIVEN_UP = b"k"  # a submission took down too many workers
    NO_GPU = b"g"  # a submission needs a GPU
    NOTE = b"n"  # for the instructor
    LOST = b"l"  # nothing can be run any longer
    ALIVE = b"h"  # the gateway still runs


MOST_BODY = {
    FrameKind.NO_GPU: MAX_NOTE,
    FrameKind.NOTE: MAX_NOTE,
    FrameKind.LOST: MAX_NOTE,
    FrameKind.GIVEN_UP: 0,
    FrameKind.ROOM: 0,
    FrameKind.ALIVE: 0,
}  # bytes, by kind


class Frame(NamedTuple):
    """One frame. The number is a submission's; for ROOM, how many; for NOTE, a machine's."""

    kind: FrameKind
    number: int = 0
    body: bytes = b""


def said(kind: FrameKind, text: str, number: int = 0) -> Frame:
    """A frame with a text, which is cut if it is too long."""
    return Frame(kind, number, text.encode(errors="replace")[:MAX_NOTE])


def to_bytes(frame: Frame) -> bytes:
    """A frame as it is sent."""
    return HEAD.pack(frame.kind, frame.number, len(frame.body)) + frame.body


def receive(
    sock: socket.socket, most: Mapping[FrameKind, int], seconds_left: Callable[[], float]
) -> Frame:
    """The next frame.

    Args:
        most: the bytes that each kind's body may have.
        seconds_left: how long to wait for the whole frame.

    Raises:
        EOFError: the other end is closed.
        ValueError: the kind is unknown, or the body too large.
        TimeoutError: no seconds are left.
    """
    byte, number, size = HEAD.unpack(_exactly(sock, HEAD.size, seconds_left))
    kind = FrameKind(byte)
    if size > most.get(kind, -1):
        raise ValueError(f"a frame {kind!r} of {size:,} bytes; expected at most {most.get(kind)}")
    return Frame(kind, number, _exactly(sock, size, seconds_left))


async def next_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The number and the body of the command's next frame."""
    _, number, size = HEAD.unpack(await reader.readexactly(HEAD.size))
    return number, await reader.readexactly(size)


def _exactly(sock: socket.socket, size: int, seconds_left: Callable[[], float]) -> bytes:
    pieces = []
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while size:
        left = seconds_left()
        # Whoever sends without a pause would be waited for without an end.
        if left <= 0 or not poll.poll(1000 * left):
            raise TimeoutError
        piece = sock.recv(min(size, 2**20))
        if not piece:
            raise EOFError
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def machine_of(address: str) -> int:
    """A number for the machine of a worker, the same for all its workers; never 0."""
    return zlib.crc32(address.rpartition(":")[0].encode(errors="replace")) or 1


class Notes:
    """Passes notes on to `show`, without control characters; counts those above the limits."""

    def __init__(
        self, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._show = show
        self._clock = clock
        self._shown: Counter[int] = Counter()  # by machine
        self._room = float(NOTES_AT_ONCE)
        self._filled = clock()
        self.left_out = 0

    def take(self, machine: int, text: str) -> None:
        """Show a note about a machine (`machine_of`), or count it as left out."""
        now = self._clock()
        self._room = min(NOTES_AT_ONCE, self._room + (now - self._filled) / NOTE_EVERY_S)
        self._filled = now
        too_many = self._shown.total() >= MOST_NOTES or self._shown[machine] >= NOTES_PER_MACHINE
        if too_many or self._room < 1:
            self.left_out += 1
            return
        self._room -= 1
        self._shown[machine] += 1
        self._show(one_line(text, NOTE_LENGTH))

    def close(self) -> None:
        if self.left_out:
            self._show(
                f"{self.left_out:,} more notes about the cluster were left out: at most "
                f"{MOST_NOTES} are shown in a run, {NOTES_PER_MACHINE} about one machine, "
                f"{NOTES_AT_ONCE} at once"
            )


class Liveness:
    """Two clocks that a note does not reset.

    Args:
        silent_s: seconds without a sign that the gateway runs.
        stuck_s: seconds in which no submission ends, so that the gateway runs and delivers nothing.
    """

    def __init__(
        self, silent_s: float, stuck_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._silent_s = silent_s
        self._stuck_s = stuck_s
        self._clock = clock
        self._heard = self._ended = clock()

    def heard(self) -> None:
        self._heard = self._clock()

    def ended(self) -> None:
        """A submission has ended, or the first one has been sent."""
        self._ended = self._heard = self._clock()

    def seconds_left(self, waiting: bool) -> float:
        """Until the run is lost; `waiting` says whether any submission has no result yet."""
        return self._first(waiting)[0] - self._clock()

    def why(self, waiting: bool) -> str:
        """Why the run is lost, once no seconds are left: the clock that ran out first."""
        return self._first(waiting)[1]

    def _first(self, waiting: bool) -> tuple[float, str]:
        silent = f"the gateway to the cluster has said nothing for {self._silent_s:g} s"
        stuck = f"no submission has ended for {self._stuck_s / 3600:.1f} hours"
        clocks = [(self._heard + self._silent_s, silent)]
        if waiting:
            clocks.append((self._ended + self._stuck_s, stuck))
        return min(clocks)


PACKAGE = Path(__file__).resolve().parents[3]


def gateway_command(descriptor: int, calls: int | None = None) -> list[str]:
    """The command line: this Python with the network, but without the course, or any home.

    Args:
        descriptor: the gateway's end of the socket.
        calls: a descriptor of `seccomp.program`, if there is one for this machine.
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


def confine() -> None:
    """What the gateway does first: bound its memory and its files, and leave root."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (DISK, DISK))
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)


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
        self.sock.close()
        self._errors.close()
