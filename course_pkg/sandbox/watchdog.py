"""Limits on memory and processes without control groups: a thread looks, many times a second.

It counts what a sandbox holds: private and shared memory of every process inside, and the files in
its tmpfs folders. Over a limit, it kills the sandbox's first process, and with that all. It looks
more often the nearer the limit is, but what grows between two looks is over the limit for a moment;
and pages that nothing maps (in pipes, in sockets) only show when the whole machine runs short. A
file in tmpfs that is mapped too, as tensors that two processes share, counts twice.

Chapter: appendix/for-instructors.
"""

import contextlib
import os
import re
import signal
import threading
import time
from pathlib import Path

from .waiting import readable

SLOWEST, FASTEST = 0.1, 0.01  # seconds between two looks
GROWTH = (2 << 30) * (os.cpu_count() or 1)  # bytes a second that can be filled here, roughly
LONGEST = 0.25  # between two looks that each take long, so as to leave the processor to others
SHARE = 10  # one look in so many is exact though it need not be; and the pause, in looks' lengths
FLOOR = 0.04  # of the machine's memory; with less available, a sandbox that grows is ended
GROWN = 0.1  # of its limit, within the last looks: then a machine that is short blames it at once
SHORT_LOOKS = (
    12  # at a machine that stays short, before every sandbox has to go, seen to grow or not
)
DEADLINE = 10.0  # seconds that ending a sandbox may take
KIB = 1024


class Watchdog:
    """Limits kept by looking; see `Fence` for what it can do.

    memory_bytes: for everything in the sandbox. processes: processes and threads together.
    """

    kind = "watchdog"
    join: tuple[int, ...] = ()

    def __init__(self, memory_bytes: int, processes: int) -> None:
        self._memory_bytes, self._processes = memory_bytes, processes
        self._verdict = ""
        self._peak: int | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._victims: list[int] = []  # descriptors of processes
        self._folders: list[int] = []  # descriptors: the sandbox's /proc, then its tmpfs folders

    def watch(self, init_pid: int, *waiting: int) -> None:
        """Begin. init_pid: the sandbox's first process; waiting: more processes to end with it.

        To be called before code that is not trusted runs inside. Raises OSError if the sandbox
        can't be looked into, ValueError if it is none: without a /proc of its own.
        """
        try:
            self._victims = [os.pidfd_open(pid) for pid in (init_pid, *waiting)]
            self._folders = _open_folders(init_pid)
        except BaseException:
            self._release()
            raise
        self._thread = threading.Thread(target=self._patrol, name="watchdog", daemon=True)
        self._thread.start()

    def out_of_memory(self) -> bool:
        """Whether the sandbox was ended because it held more memory than it may."""
        return self._verdict == "memory"

    def starved(self) -> bool:
        """Whether it was ended within its limits: the machine ran short, or no look succeeded."""
        return self._verdict in ("machine", "blind")

    def out_of_processes(self) -> bool:
        """Whether it was ended because it had more processes and threads than it may."""
        return self._verdict == "processes"

    def peak_bytes(self) -> int | None:
        """The most memory that an exact look found; None if there was none."""
        return self._peak

    def kill(self) -> None:
        """End the sandbox, and return when its first process, the last to go, is gone.

        Raises TimeoutError when it stays, which only a fault of the kernel's does.
        """
        self._strike()
        for victim in self._victims:
            if not readable(victim, DEADLINE):
                raise TimeoutError(f"the sandbox does not die in {DEADLINE:.0f} s")

    def _strike(self) -> None:
        self._stop.set()
        for victim in self._victims:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(victim, signal.SIGKILL)

    def close(self) -> None:
        """End the sandbox and the thread. A second call does nothing."""
        self.kill()
        if self._thread is not None:
            self._thread.join()
        self._release()

    def _release(self) -> None:
        for descriptor in (*self._victims, *self._folders):
            os.close(descriptor)
        self._victims, self._folders = [], []

    def _patrol(self) -> None:
        try:
            self._look_on()
        except Exception:  # whatever it is: nothing runs without a limit
            self._verdict = "blind"
            self._strike()
            raise

    def _look_on(self) -> None:
        held_before: list[int] = []  # by the last looks, a second's worth at most
        pause, looks, short = 0.0, 0, 0
        while not self._stop.wait(pause):
            began = time.thread_time()
            most, tasks = self._look(exact=False)
            if most > self._memory_bytes or looks % SHARE == 0:
                held, tasks = self._look(exact=True)
                if held > self._memory_bytes:  # a fork between two processes' counts adds to both
                    held = min(held, self._look(exact=True)[0])
                self._peak = max(self._peak or 0, held)
                most = min(most, held)
            looks += 1
            grown = most - min(held_before, default=most) > GROWN * self._memory_bytes
            held_before = [*held_before[-SHARE:], most]
            short = short + 1 if _machine_is_short() else 0
            if most > self._memory_bytes:
                self._verdict = "memory"
            elif tasks > self._processes:
                self._verdict = "processes"
            elif (short and grown) or short > SHORT_LOOKS:  # some memory is in no process
                self._verdict = "machine"
            if self._verdict:
                self._strike()
            left = max(self._memory_bytes - most, 0) / GROWTH
            cost = time.thread_time() - began  # of the processor: waiting for it costs nobody
            pause = max(min(SLOWEST, left), FASTEST, min(SHARE * cost, LONGEST))

    def _look(self, exact: bool) -> tuple[int, int]:
        """Bytes of memory, and number of processes and threads, in the sandbox now.

        Not exact: pages that several processes share count for each, so it is never too little.
        """
        proc, *folders = self._folders
        memory = tasks = 0
        for name in os.listdir(proc):
            if name.isdigit():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    status = _fields(proc, f"{name}/status")
                    tasks += status.get("Threads", 0)
                    own = status.get("RssAnon", 0) + status.get("RssShmem", 0)
                    if exact and own:
                        with contextlib.suppress(PermissionError):  # then the upper bound stands
                            rollup = _fields(proc, f"{name}/smaps_rollup")
                            own = rollup["Pss_Anon"] + rollup["Pss_Shmem"]
                    memory += own * KIB
        for folder in folders:
            space = os.fstatvfs(folder)
            memory += (space.f_blocks - space.f_bfree) * space.f_frsize
        return memory, tasks


def _open_folders(init_pid: int) -> list[int]:
    """The sandbox's /proc and each tmpfs that only it has, held open whatever happens inside."""
    root = os.open(f"/proc/{init_pid}/root", os.O_PATH | os.O_DIRECTORY)
    opened = []
    try:
        opened.append(os.open("proc", os.O_RDONLY | os.O_DIRECTORY, dir_fd=root))
        if os.fstat(opened[0]).st_dev == os.stat("/proc").st_dev:
            raise ValueError(f"process {init_pid} has the machine's own /proc: it is no sandbox")
        done = {device for device, _ in _tmpfs_mounts("self")}  # the machine's own
        for device, point in _tmpfs_mounts(init_pid):
            if device in done:
                continue
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # covered by another
                opened.append(os.open(point.lstrip("/") or ".", os.O_PATH, dir_fd=root))
                if os.fstat(opened[-1]).st_dev == device:
                    done.add(device)
                else:
                    os.close(opened.pop())
    except BaseException:
        for descriptor in opened:
            os.close(descriptor)
        raise
    finally:
        os.close(root)
    return opened


def _tmpfs_mounts(pid: int | str) -> list[tuple[int, str]]:
    """Device number and place of every tmpfs that process `pid` can see."""
    found = []
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        before, after = line.split(" - ", 1)
        _, _, device, _, point, *_ = before.split()
        if after.split()[0] == "tmpfs":
            plain = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
            major, minor = map(int, device.split(":"))
            found.append((os.makedev(major, minor), plain))
    return found


def _fields(folder: int, path: str) -> dict[str, int]:
    """The lines of a /proc file of the form `Name:  123 kB`."""
    with open(path, opener=lambda name, flags: os.open(name, flags, dir_fd=folder)) as file:
        return {
            name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+)", file.read(), re.M)
        }


def _machine_is_short() -> bool:
    with open("/proc/meminfo") as file:
        known = {name: int(value) for name, value in re.findall(r"(\w+):\s+(\d+)", file.read())}
    return known["MemAvailable"] < FLOOR * known["MemTotal"]
