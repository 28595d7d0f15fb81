"""Control groups: the kernel's limits on the memory and the processes of a whole process tree.

A process joins a group by writing to an open file; its later children are members too, and can't
leave. Both versions of the kernel's interface are supported; `cgroup_parent` finds out which one
works here. Nothing here limits a single process, or time, or files.

Chapter: appendix/for-instructors.
"""

import contextlib
import os
import re
import secrets
import signal
import time
from dataclasses import dataclass
from pathlib import Path

DEADLINE = 10.0  # seconds to wait for killed processes
FULL = 0.98  # of the limit counts as reached: the kernel charges pages in batches
PAUSE = 0.002  # seconds between two looks at a group that is being killed


@dataclass(frozen=True)
class CgroupParent:
    """Folders of the control group file system in which new groups can be created.

    memory, pids: one folder for each controller; in version 2 both are the same.
    """

    kind: str  # "cgroup v2", "cgroup v1" or "systemd scope"
    memory: Path
    pids: Path


class Cgroup:
    """A new control group with limits.

    memory_bytes: for everything inside, including files in tmpfs and the kernel's own memory.
    processes: processes and threads together. kind: of the parent. join_descriptors: open files; a
    process writes b"0" to each of them to come under the limits, and must then close them. Raises
    ValueError unless name is one plain part of a path, OSError if the group can't be created.
    """

    def __init__(self, parent: CgroupParent, name: str, memory_bytes: int, processes: int) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise ValueError(
                f"the group's name {name!r} may have letters, digits, '_', '.' and '-'"
            )
        self.kind = parent.kind
        # A killed grader's group may have the same process id, and so may one in a container.
        unique = f"course-{os.getpid()}-{secrets.token_hex(4)}-{name}"
        self._memory = parent.memory / unique
        self._pids = parent.pids / unique
        self._folders: tuple[Path, ...] = ()
        self._version_1 = parent.kind == "cgroup v1"
        self.join_descriptors: tuple[int, ...] = ()
        try:
            for folder in dict.fromkeys((self._memory, self._pids)):
                folder.mkdir()
                self._folders += (folder,)
            self._limit(memory_bytes, processes)
            self.join_descriptors = tuple(
                os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
                for folder in self._folders
            )
        except BaseException:
            self._remove()
            raise

    def _limit(self, memory_bytes: int, processes: int) -> None:
        if self._version_1:
            (self._memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
            optional = {"memory.memsw.limit_in_bytes": memory_bytes}  # memory plus swap
            optional["memory.kmem.tcp.limit_in_bytes"] = memory_bytes // 16  # counted apart
        else:
            (self._memory / "memory.max").write_text(str(memory_bytes))
            optional = {"memory.swap.max": 0, "memory.oom.group": 1}
        (self._pids / "pids.max").write_text(str(processes))
        for name, value in optional.items():
            if (self._memory / name).exists():  # depends on how the kernel was built
                (self._memory / name).write_text(str(value))

    def watch(self, init_pid: int, *others: int) -> None:
        """Do nothing: the kernel enforces the limits."""

    def out_of_memory(self) -> bool:
        """Whether the kernel killed a process because the group reached its memory limit."""
        return self._killed() > 0 and self._at_limit()

    def killed_within_limits(self) -> bool:
        """Whether the kernel killed a process although the group was below its memory limit."""
        return self._killed() > 0 and not self._at_limit()

    def out_of_processes(self) -> bool:
        """Whether a new process or thread was refused because of the limit."""
        return _counters(self._pids / "pids.events").get("max", 0) > 0

    def _killed(self) -> int:
        name = "memory.oom_control" if self._version_1 else "memory.events"
        return _counters(self._memory / name).get("oom_kill", 0)

    def _at_limit(self) -> bool:
        if self._version_1:  # failcnt stays 0 in some kernels
            limit = int((self._memory / "memory.limit_in_bytes").read_text())
            return (self.peak_bytes() or 0) >= FULL * limit
        return _counters(self._memory / "memory.events")["oom"] > 0

    def peak_bytes(self) -> int | None:
        """The most memory that was in use at any time; None if the kernel does not report it."""
        name = "memory.max_usage_in_bytes" if self._version_1 else "memory.peak"
        path = self._memory / name
        return int(path.read_text()) if path.exists() else None

    def kill(self) -> None:
        """Kill everything inside and wait until it is gone; nothing can start inside afterwards.

        Raises TimeoutError if processes survive, which only a fault in the kernel causes.
        """
        (self._pids / "pids.max").write_text("0")
        deadline = time.monotonic() + DEADLINE
        while left := self._members():
            kill_all = self._memory / "cgroup.kill"  # version 2, since Linux 5.14
            if kill_all.exists():
                kill_all.write_text("1")
            else:
                for pid in left:
                    self._kill_member(pid)
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {sorted(left)} did not die within {DEADLINE:.0f} s")
            time.sleep(PAUSE)

    def _members(self) -> set[int]:
        return {pid for folder in self._folders for pid in processes_in(folder)}

    def _kill_member(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                if pid in self._members():  # otherwise the id belongs to a new process by now
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)

    def close(self) -> None:
        """Kill what is left inside and remove the group. A second call does nothing."""
        if self._pids.exists():
            self.kill()
        self._remove()

    def _remove(self) -> None:
        for descriptor in self.join_descriptors:
            os.close(descriptor)
        self.join_descriptors = ()
        deadline = time.monotonic() + DEADLINE
        for folder in self._folders:
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:  # busy: the last process is still exiting
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(PAUSE)


def processes_in(folder: Path) -> set[int]:
    """The ids of the processes in the group at `folder`."""
    return {int(pid) for pid in words(folder / "cgroup.procs")}


def words(path: Path) -> set[str]:
    """The words in a short file."""
    return set(path.read_text().split())


def _counters(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in map(str.split, path.read_text().splitlines())}
