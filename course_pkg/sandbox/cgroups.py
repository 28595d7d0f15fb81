"""Control groups: the kernel's own limits on the memory and the processes of a whole tree.

A process puts itself into a group by writing to an open file; what it starts from then on is in it
too, and no way leads out. Both versions of the kernel's interface are here; where they can be used
is found out in `cgroup_places`. Nothing here limits one process alone, or time, or files.

Chapter: appendix/for-instructors.
"""

import contextlib
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

DEADLINE = 10.0  # seconds that killing a group may take
FULL = 0.98  # of the limit, at the peak: the kernel charges pages by the batch
PAUSE = 0.002  # seconds between two looks at a group that is going down


@dataclass(frozen=True)
class Place:
    """Folders of the control group file system that new groups can be made in.

    The two are one in version 2.
    """

    kind: str  # "cgroup v2", "cgroup v1" or "systemd scope"
    memory: Path
    pids: Path


class Cgroup:
    """A control group with limits, made when the object is; see `Fence` for what it can do.

    memory_bytes: for everything inside, files in tmpfs and the kernel's own share included.
    processes: processes and threads together. Raises ValueError unless name is one plain part of a
    path, OSError if the group can't be made.
    """

    def __init__(self, place: Place, name: str, memory_bytes: int, processes: int) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise ValueError(f"a group's name is of letters, digits, '_', '.', '-'; not {name!r}")
        self.kind = place.kind
        self._memory, self._pids = (
            folder / f"course-{os.getpid()}-{name}" for folder in (place.memory, place.pids)
        )
        self._folders: tuple[Path, ...] = ()
        self._first_version = place.kind == "cgroup v1"
        self.join: tuple[int, ...] = ()
        try:
            for folder in dict.fromkeys((self._memory, self._pids)):
                folder.mkdir()
                self._folders += (folder,)
            self._limit(memory_bytes, processes)
            self.join = tuple(
                os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
                for folder in self._folders
            )
        except BaseException:
            self._remove()
            raise

    def _limit(self, memory_bytes: int, processes: int) -> None:
        if self._first_version:
            (self._memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
            wishes = {"memory.memsw.limit_in_bytes": memory_bytes}  # memory and swap together
            wishes["memory.kmem.tcp.limit_in_bytes"] = memory_bytes // 16  # not part of memory
        else:
            (self._memory / "memory.max").write_text(str(memory_bytes))
            wishes = {"memory.swap.max": 0, "memory.oom.group": 1}
        (self._pids / "pids.max").write_text(str(processes))
        for name, value in wishes.items():
            if (self._memory / name).exists():  # what the kernel was built to count
                (self._memory / name).write_text(str(value))

    def watch(self, init_pid: int, *waiting: int) -> None:
        """Nothing: the kernel watches."""

    def out_of_memory(self) -> bool:
        """Whether the kernel has killed something in here because of this group's limit."""
        return self._killed() > 0 and self._at_limit()

    def starved(self) -> bool:
        """Whether something in here was killed though the group was within its limit."""
        return self._killed() > 0 and not self._at_limit()

    def out_of_processes(self) -> bool:
        """Whether a process or thread was refused because of the limit."""
        return _counters(self._pids / "pids.events").get("max", 0) > 0

    def _killed(self) -> int:
        name = "memory.oom_control" if self._first_version else "memory.events"
        return _counters(self._memory / name).get("oom_kill", 0)

    def _at_limit(self) -> bool:
        if self._first_version:  # failcnt stays 0 in some kernels
            limit = int((self._memory / "memory.limit_in_bytes").read_text())
            return (self.peak_bytes() or 0) >= FULL * limit
        return _counters(self._memory / "memory.events")["oom"] > 0

    def peak_bytes(self) -> int | None:
        """The most memory that was in use at any time; None where the kernel does not say."""
        name = "memory.max_usage_in_bytes" if self._first_version else "memory.peak"
        path = self._memory / name
        return int(path.read_text()) if path.exists() else None

    def kill(self) -> None:
        """Kill everything inside, and return when it is empty; nothing can start in it again.

        Raises TimeoutError when processes stay, which only a fault of the kernel's does.
        """
        (self._pids / "pids.max").write_text("0")
        deadline = time.monotonic() + DEADLINE
        while left := self._members():
            at_once = self._memory / "cgroup.kill"  # version 2, from Linux 5.14 on
            if at_once.exists():
                at_once.write_text("1")
            else:
                for pid in left:
                    self._kill_member(pid)
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {sorted(left)} do not die in {DEADLINE:.0f} s")
            time.sleep(PAUSE)

    def _members(self) -> set[int]:
        return {pid for folder in self._folders for pid in processes_in(folder)}

    def _kill_member(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                if pid in self._members():  # else the number may have been given to another
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)

    def close(self) -> None:
        """Kill what is left inside, and remove the group. A second call does nothing."""
        if self._pids.exists():
            self.kill()
        self._remove()

    def _remove(self) -> None:
        for descriptor in self.join:
            os.close(descriptor)
        self.join = ()
        deadline = time.monotonic() + DEADLINE
        for folder in self._folders:
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:  # busy: the last process is not quite gone
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(PAUSE)


def processes_in(folder: Path) -> set[int]:
    """The ids of the processes in the group at `folder`."""
    return {int(pid) for pid in words(folder / "cgroup.procs")}


def words(path: Path) -> set[str]:
    """The words of a short file."""
    return set(path.read_text().split())


def _counters(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in map(str.split, path.read_text().splitlines())}
