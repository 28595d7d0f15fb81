"""What a sandbox may use of the machine, and who sees to it.

A `Fence` stands round all processes of one sandbox together: a control group of the kernel where
one can be made, else the watchdog. `child_limits` adds what the kernel keeps for each process. Time
is not limited here, except the processor's; the grader holds the clock.

Chapter: appendix/for-instructors.
"""

import os
import resource
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from . import cgroup_places
from .cgroups import Cgroup, Place
from .watchdog import Watchdog

NPROC_COUNTS_BY_NAMESPACE = (5, 14)  # Linux: before that, all of a user's processes counted
MIB = 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """How much of the machine a sandbox may use."""

    memory_bytes: int  # of all processes together, with what they write into tmpfs
    processes: int  # processes and threads together
    files: int  # open at a time, in each process
    file_bytes: int  # the size of any one file
    cpu_s: float | None  # seconds of processor time in each process; None for no limit


class Fence(Protocol):
    """What keeps a sandbox to its limits on memory and processes, as a whole.

    kind: how: "cgroup v2", "cgroup v1", "systemd scope" or "watchdog". join: open files to each of
    which a process writes b"0" to go inside, and which it must close then.
    """

    kind: str
    join: tuple[int, ...]

    def watch(self, init_pid: int, *waiting: int) -> None:
        """Begin, where it is the watchdog: the sandbox's first process, and others to end too."""

    def out_of_memory(self) -> bool:
        """Whether something was killed for memory over this limit. To be asked before `close`."""

    def starved(self) -> bool:
        """Whether something was killed though within the limit: not the submission's fault."""

    def out_of_processes(self) -> bool:
        """Whether the limit on processes was hit: more were refused, or all were killed."""

    def peak_bytes(self) -> int | None:
        """The most memory that was in use; None where that is not known."""

    def kill(self) -> None:
        """Kill everything inside, for good; on return it is gone. May be called again."""

    def close(self) -> None:
        """Kill, and take the fence itself away. May be called again."""


@cache
def _place() -> Place | None:
    return cgroup_places.find()


def fence(limits: Limits, name: str) -> Fence:
    """A new fence: a control group if one can be made here (tried once a run), else a watchdog.

    name: for whoever looks at the machine; letters, digits, '_', '.' and '-'. Raises OSError if a
    group can't be made where one could before.
    """
    place = _place()
    if place is None:
        return Watchdog(limits.memory_bytes, limits.processes)
    return Cgroup(place, name, limits.memory_bytes, limits.processes)


def child_limits(limits: Limits) -> None:
    """Lower this process's own limits, soft and hard, for itself and all it will start.

    To be called inside the user namespace and as the user that stays, or the count of processes is
    that of a whole desktop. Memory: a quarter more than the fence allows, on top of what is mapped
    now; processes: twice as many. So the fence comes first, and what is faster than the watchdog
    still meets an end: MemoryError, or no more processes.
    """
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    wanted = {
        resource.RLIMIT_NOFILE: limits.files,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_DATA: mapped + limits.memory_bytes * 5 // 4,  # not AS: torch reserves much
        resource.RLIMIT_STACK: 64 * MIB,
        resource.RLIMIT_MEMLOCK: MIB,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 1024,
        resource.RLIMIT_RTPRIO: 0,
    }
    # Not 0, with which a crash would still start the host's program that collects such files.
    no_core = 1 if resource.getrlimit(resource.RLIMIT_CORE)[1] else 0
    resource.setrlimit(resource.RLIMIT_CORE, (no_core, no_core))
    if limits.cpu_s is not None:
        wanted[resource.RLIMIT_CPU] = max(1, round(limits.cpu_s))
    if _linux_release() >= NPROC_COUNTS_BY_NAMESPACE:
        wanted[resource.RLIMIT_NPROC] = 2 * limits.processes
    for kind, most in wanted.items():
        now = resource.getrlimit(kind)
        lower = [most if value == resource.RLIM_INFINITY else min(value, most) for value in now]
        resource.setrlimit(kind, (lower[0], lower[1]))


def _linux_release() -> tuple[int, int]:
    major, minor, *_ = os.uname().release.replace("-", ".").split(".")
    return int(major), int(minor)
