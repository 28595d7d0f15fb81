"""Resource limits of a sandbox: how much of the machine it may use, and what enforces that.

A `LimitEnforcer` limits all processes of one sandbox together: a control group of the kernel where
one can be created, otherwise the watchdog. `set_process_limits` adds the kernel's limits on each
process. Time is not limited here: the grader watches the clock.

Chapter: appendix/for-instructors.
"""

import os
import resource
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from . import cgroup_parent
from .cgroups import Cgroup, CgroupParent
from .watchdog import Watchdog

NPROC_COUNTS_BY_NAMESPACE = (5, 14)  # Linux: before that, all processes of a user counted
MIB = 1024 * 1024


@dataclass(frozen=True)
class ResourceLimits:
    """How much of the machine a sandbox may use."""

    memory_bytes: int  # all processes together, including what they write to tmpfs
    processes: int  # processes and threads together
    files: int  # open at the same time, in each process
    file_bytes: int  # the size of any one file


class LimitEnforcer(Protocol):
    """Limits the memory and the number of processes of a whole sandbox.

    kind: "cgroup v2", "cgroup v1", "systemd scope" or "watchdog". join_descriptors: open files; a
    process writes b"0" to each of them to come under the limits, and must then close them.
    """

    kind: str
    join_descriptors: tuple[int, ...]

    def watch(self, init_pid: int, *others: int) -> None:
        """Start enforcing. init_pid: the sandbox's first process; others: to be killed with it."""

    def out_of_memory(self) -> bool:
        """Whether a process was killed for exceeding the memory limit. Ask before `close`."""

    def killed_within_limits(self) -> bool:
        """Whether a process was killed although the sandbox kept its limits."""

    def out_of_processes(self) -> bool:
        """Whether the limit on processes was reached: new ones were refused, or all were killed."""

    def peak_bytes(self) -> int | None:
        """The most memory that was in use; None if unknown."""

    def kill(self) -> None:
        """Kill everything inside and wait until it is gone. May be called again."""

    def close(self) -> None:
        """Kill everything inside and release the enforcer's own resources. May be called again."""


@cache
def _parent() -> CgroupParent | None:
    return cgroup_parent.find_parent()


def limit_enforcer(limits: ResourceLimits, name: str) -> LimitEnforcer:
    """A new control group if this machine allows one (tried once per run), otherwise a watchdog.

    name: of the control group, as an administrator sees it; letters, digits, '_', '.' and '-'.
    Raises OSError if a group can't be created where one could be before.
    """
    parent = _parent()
    if parent is None:
        return Watchdog(limits.memory_bytes, limits.processes)
    return Cgroup(parent, name, limits.memory_bytes, limits.processes)


def set_process_limits(limits: ResourceLimits) -> None:
    """Lower the soft and hard limits of this process, which all its children inherit.

    Call it inside the user namespace and as the final user; otherwise the number of processes
    includes everything else this user runs. A process may use a quarter more memory than the whole
    sandbox, on top of what is mapped now, and start twice as many processes. So the enforcer acts
    first, and a program that is faster than the watchdog still gets MemoryError, or an error when
    it starts a process.
    """
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    maximums = {
        resource.RLIMIT_NOFILE: limits.files,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_DATA: mapped + limits.memory_bytes * 5 // 4,  # not AS: torch reserves much
        resource.RLIMIT_STACK: 64 * MIB,
        resource.RLIMIT_MEMLOCK: MIB,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 1024,
        resource.RLIMIT_RTPRIO: 0,
    }
    # 1, not 0: with 0, a crash would still start the host's program that collects core files.
    core_bytes = 1 if resource.getrlimit(resource.RLIMIT_CORE)[1] else 0
    resource.setrlimit(resource.RLIMIT_CORE, (core_bytes, core_bytes))
    if _linux_release() >= NPROC_COUNTS_BY_NAMESPACE:
        maximums[resource.RLIMIT_NPROC] = 2 * limits.processes
    for kind, most in maximums.items():
        now = resource.getrlimit(kind)
        lower = [most if value == resource.RLIM_INFINITY else min(value, most) for value in now]
        resource.setrlimit(kind, (lower[0], lower[1]))


def _linux_release() -> tuple[int, int]:
    major, minor, *_ = os.uname().release.replace("-", ".").split(".")
    return int(major), int(minor)
