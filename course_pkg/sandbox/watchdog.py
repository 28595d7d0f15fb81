"""Limits on memory and processes without control groups: a thread measures, many times a second.

It adds up the private and shared memory of all processes in a sandbox and the files in its tmpfs
folders. Above a limit, it kills the sandbox's first process, and with it all others. Between two
measurements a sandbox can exceed the limit for a moment. Memory that no process has mapped (in
pipes and sockets) shows only when the whole machine runs out of memory. A tmpfs file that is also
mapped, as tensors shared by two processes are, counts twice.
"""

import contextlib
import os
import re
import signal
import threading
import time
from pathlib import Path

from course_pkg.sandbox.waiting import readable

SLOWEST, FASTEST = 0.1, 0.01  # seconds between two measurements
GROWTH = (2 << 30) * (os.cpu_count() or 1)  # bytes per second that programs can fill, roughly
LONGEST = 0.25  # seconds between two measurements if each takes long
SHARE = 10  # at least one measurement in 10 is exact; pauses last 10 times as long as measuring
FLOOR = 0.04  # share of the machine's memory; with less available, a growing sandbox is killed
GROWN = 0.1  # share of its limit: a sandbox that grew by this much lately is a growing one
SHORT_LIMIT = 12  # measurements with too little available, until any sandbox is killed
DEADLINE = 10.0  # seconds to wait for a killed sandbox
KIB = 1024
INODE = KIB  # bytes of the kernel's memory for a file in a tmpfs, also for an empty one


class Watchdog:
    """Limits enforced by measuring, with the methods of a `Cgroup`."""

    kind = "watchdog"
    join_descriptors: tuple[int, ...] = ()

    def __init__(self, memory_bytes: int, processes: int) -> None:
        self._memory_bytes = memory_bytes
        self._processes = processes
        self._reason = ""
        self._peak: int | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pidfds: list[int] = []  # of the processes to kill
        self._folders: list[int] = []  # descriptors: the sandbox's /proc, then its tmpfs folders

    def watch(self, init_pid: int, *others: int) -> None:
        """Start measuring the sandbox of `init_pid`. Raises OSError or ValueError if it is in none.

        Args:
            others: to be killed with it; one of them may have ended already.
        """
        try:
            self._pidfds = [os.pidfd_open(init_pid)]
            for pid in others:
                with contextlib.suppress(ProcessLookupError):  # a short program is done by now
                    self._pidfds.append(os.pidfd_open(pid))
            self._folders = _open_folders(init_pid)
        except BaseException:
            self._release()
            raise
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def out_of_memory(self) -> bool:
        return self._reason == "memory"

    def killed_within_limits(self) -> bool:
        """Whether it was killed because the machine ran out of memory, or measuring failed."""
        return self._reason in ("machine", "failed")

    def out_of_processes(self) -> bool:
        return self._reason == "processes"

    def peak_bytes(self) -> int | None:
        return self._peak

    def kill(self) -> None:
        """Kill the sandbox, and wait until its first process, the last to exit, is gone."""
        self._send_kill()
        for pidfd in self._pidfds:
            if not readable(pidfd, DEADLINE):
                raise TimeoutError(f"the sandbox did not die within {DEADLINE:.0f} s")

    def _send_kill(self) -> None:
        self._stop.set()
        for pidfd in self._pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        if self._thread is not None:
            self._thread.join()
        self._release()

    def _release(self) -> None:
        for descriptor in (*self._pidfds, *self._folders):
            os.close(descriptor)
        self._pidfds = []
        self._folders = []

    def _run(self) -> None:
        try:
            self._measure_repeatedly()
        except Exception:  # of any kind: nothing may run without limits
            self._reason = "failed"
            self._send_kill()
            raise

    def _measure_repeatedly(self) -> None:
        recent: list[int] = []  # bytes in the latest measurements
        pause = 0.0
        count = short = 0
        while not self._stop.wait(pause):
            began = time.thread_time()
            most, tasks = self._measure(exact=False)
            if most > self._memory_bytes or count % SHARE == 0:
                held, tasks = self._measure(exact=True)
                if held > self._memory_bytes:  # a fork while measuring counts some pages twice
                    held = min(held, self._measure(exact=True)[0])
                self._peak = max(self._peak or 0, held)
                most = min(most, held)
            count += 1
            grown = most - min(recent, default=most) > GROWN * self._memory_bytes
            recent = [*recent[-SHARE:], most]
            short = short + 1 if _machine_is_short() else 0
            if most > self._memory_bytes:
                self._reason = "memory"
            elif tasks > self._processes:
                self._reason = "processes"
            elif (short and grown) or short > SHORT_LIMIT:  # some memory belongs to no process
                self._reason = "machine"
            if self._reason:
                self._send_kill()
            left = max(self._memory_bytes - most, 0) / GROWTH
            cost = time.thread_time() - began  # seconds of processor time
            pause = max(min(SLOWEST, left), FASTEST, min(SHARE * cost, LONGEST))

    def _measure(self, exact: bool) -> tuple[int, int]:
        """Bytes of memory, and number of processes and threads, in the sandbox now.

        Not exact: pages that processes share count once for each, so the result is an upper bound.
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
                        with contextlib.suppress(PermissionError):  # then use the upper bound
                            rollup = _fields(proc, f"{name}/smaps_rollup")
                            own = rollup["Pss_Anon"] + rollup["Pss_Shmem"]
                    memory += own * KIB
        for folder in folders:
            space = os.fstatvfs(folder)
            memory += (space.f_blocks - space.f_bfree) * space.f_frsize
            memory += (space.f_files - space.f_ffree) * INODE
        return memory, tasks


def _open_folders(init_pid: int) -> list[int]:
    root = os.open(f"/proc/{init_pid}/root", os.O_PATH | os.O_DIRECTORY)
    opened = []
    try:
        opened.append(os.open("proc", os.O_RDONLY | os.O_DIRECTORY, dir_fd=root))
        if os.fstat(opened[0]).st_dev == os.stat("/proc").st_dev:
            raise ValueError(f"process {init_pid} has the machine's /proc: it is not in a sandbox")
        done = {device for device, _ in _tmpfs_mounts("self")}  # the machine's own
        for device, point in _tmpfs_mounts(init_pid):
            if device in done:
                continue
            # Another mount may cover it.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
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
    mounts = []
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        before, after = line.split(" - ", 1)
        _, _, device, _, point, *_ = before.split()
        if after.split()[0] == "tmpfs":
            plain = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
            major, minor = map(int, device.split(":"))
            mounts.append((os.makedev(major, minor), plain))
    return mounts


def _fields(folder: int | None, path: str) -> dict[str, int]:
    with open(path, opener=lambda name, flags: os.open(name, flags, dir_fd=folder)) as file:
        pairs = re.findall(r"^(\w+):\s+(\d+)", file.read(), re.MULTILINE)
    return {name: int(value) for name, value in pairs}


def _machine_is_short() -> bool:
    known = _fields(None, "/proc/meminfo")
    return known["MemAvailable"] < FLOOR * known["MemTotal"]
