"""Control groups: the kernel's limits on the memory and the processes of a whole process tree.

A process joins a group by writing to an open file; its later children are members too, and can't
leave. Machines differ, so `find_parent` tries where groups can be created, in version 2 of the
kernel's interface or in version 1.
"""

import atexit
import contextlib
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEADLINE = 10.0  # seconds to wait for killed processes
FULL = 0.98  # of the limit counts as reached: the kernel charges pages in batches
PAUSE = 0.002  # seconds between two looks at a group that is being killed
PROC = Path("/proc")
NEEDED = {"memory", "pids"}
LEAF = "course-grader"  # the grader moves here if its own group must not hold processes


@dataclass(frozen=True)
class CgroupParent:
    """Folders of the control group file system in which new groups can be created.

    Attributes:
        memory, pids: one folder for each controller; in version 2 both are the same.
    """

    kind: str  # "cgroup v2", "cgroup v1" or "systemd scope"
    memory: Path
    pids: Path


class Cgroup:
    """A new control group with limits. Raises OSError if it can't be created.

    kind: of the parent. join_descriptors: open files; a process writes b"0" to each of them to come
    under the limits, and must then close them.

    Args:
        memory_bytes: for everything inside, including files in tmpfs and the kernel's own memory.
        processes: processes and threads together.
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
        name = "memory.max_usage_in_bytes" if self._version_1 else "memory.peak"
        path = self._memory / name
        return int(path.read_text()) if path.exists() else None

    def kill(self) -> None:
        """Kill everything inside and wait until it is gone; nothing can start inside afterwards."""
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


def find_parent() -> CgroupParent | None:
    """A group in which others can be created; None if there is none on this machine.

    Tries each candidate: creates a group, kills a process in it and removes it (about ten
    milliseconds). If the grader has a systemd scope to itself, it moves into a group below, so that
    other groups can be created beside it; at exit it moves back.
    """
    for parent in _candidates():
        with contextlib.suppress(OSError, TimeoutError, subprocess.SubprocessError):
            _try(parent)
            _remove_stale(parent)
            return parent
    return None


def _candidates() -> Iterator[CgroupParent]:
    own = _own_folders()
    if (folder := own.get("")) is not None:
        with contextlib.suppress(OSError):
            _delegate(folder)
        while (folder / "cgroup.controllers").exists():
            if words(folder / "cgroup.subtree_control") >= NEEDED and os.access(folder, os.W_OK):
                kind = "systemd scope" if folder.suffix == ".scope" else "cgroup v2"
                yield CgroupParent(kind, folder, folder)
            folder = folder.parent
    if own.keys() >= NEEDED:
        yield CgroupParent("cgroup v1", own["memory"], own["pids"])


def _own_folders() -> dict[str, Path]:
    """The folder of this process's own group by controller; the key for version 2 is ""."""
    paths = {}
    for line in (PROC / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    folders: dict[str, Path] = {}
    for line in (PROC / "self/mountinfo").read_text().splitlines():
        before, after = line.split(" - ", 1)
        _, _, _, root, point, *_ = before.split()
        kind, _, options = after.split()
        by_kind = {"cgroup": paths.keys() & set(options.split(",")), "cgroup2": {""}}
        for controller in by_kind.get(kind, ()):
            path = paths.get(controller, "/")
            inside = Path(path).is_relative_to(root)  # otherwise only a container's part is mounted
            folder = Path(point) / (Path(path).relative_to(root) if inside else "")
            if folder.is_dir():
                folders.setdefault(controller, folder)
    return folders


def _delegate(own: Path) -> None:
    """Allow groups with limits below `own`, if all its processes belong to the grader.

    The kernel delegates controllers only from a group without processes (or from the root).
    """
    available = words(own / "cgroup.controllers")
    enabled = words(own / "cgroup.subtree_control")
    if not available >= NEEDED or enabled >= NEEDED:
        return
    pids = processes_in(own)
    at_root = not (own / "cgroup.type").exists()
    if not at_root and sum(_parent_pid(pid) not in pids for pid in pids) != 1:
        return
    leaf = own / LEAF
    atexit.register(_move_back, own, leaf, os.getpid())
    if not at_root:
        leaf.mkdir(exist_ok=True)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (leaf / "cgroup.procs").write_text(str(pid))
    (own / "cgroup.subtree_control").write_text("+memory +pids")


def _move_back(own: Path, leaf: Path, grader: int) -> None:
    if os.getpid() != grader:  # this is a fork of the grader
        return
    with contextlib.suppress(OSError):
        (own / "cgroup.subtree_control").write_text("-memory -pids")
        if leaf.exists():
            for pid in processes_in(leaf):
                (own / "cgroup.procs").write_text(str(pid))
            leaf.rmdir()


def _try(parent: CgroupParent) -> None:
    group = Cgroup(parent, "trial", 64 << 20, 8)
    try:
        with subprocess.Popen(["sleep", "60"]) as sleeper:
            try:
                for descriptor in group.join_descriptors:
                    os.write(descriptor, str(sleeper.pid).encode())
                group.kill()
                sleeper.wait(timeout=1)
            finally:
                sleeper.kill()
    finally:
        group.close()


def _remove_stale(parent: CgroupParent) -> None:
    for folder in {*parent.memory.glob("course-*-*"), *parent.pids.glob("course-*-*")}:
        if not (PROC / folder.name.split("-")[1]).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _parent_pid(pid: int) -> int:
    return int((PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()[1])
