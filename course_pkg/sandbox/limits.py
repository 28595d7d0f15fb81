"""Resource limits of a sandbox: how much of the machine it may use, and what enforces that.

A `LimitEnforcer` limits all processes of one sandbox together: a control group of the kernel where
one can be created, otherwise the watchdog, which has the same methods. Time is not limited here:
the grader watches the clock.
"""

import os
import resource
from dataclasses import dataclass
from functools import cache

from course_pkg.sandbox.cgroups import Cgroup, CgroupParent, find_parent
from course_pkg.sandbox.watchdog import Watchdog

NPROC_COUNTS_BY_NAMESPACE = (5, 14)  # Linux: before that, all processes of a user counted
MIB = 1024 * 1024


@dataclass(frozen=True)
class ResourceLimits:
    """How much of the machine a sandbox may use."""

    memory_bytes: int  # all processes together, including what they write to tmpfs
    processes: int  # processes and threads together
    files: int  # open at the same time, in each process
    file_bytes: int  # the size of any one file


LimitEnforcer = Cgroup | Watchdog


@cache
def _parent() -> CgroupParent | None:
    return find_parent()


def limit_enforcer(limits: ResourceLimits, name: str) -> LimitEnforcer:
    """A new control group if this machine allows one (tried once per run), otherwise a watchdog.

    Args:
        name: of the control group, as an administrator sees it; letters, digits, '_', '.' and '-'.
    """
    parent = _parent()
    if parent is None:
        return Watchdog(limits.memory_bytes, limits.processes)
    return Cgroup(parent, name, limits.memory_bytes, limits.processes)


def set_process_limits(limits: ResourceLimits) -> None:
    """Lower the soft and hard limits of this process, which all its children inherit.

    Call it inside the user namespace and as the final user; otherwise the number of processes
    includes everything else this user runs. The limits are looser than the enforcer's, which acts
    first; a program that is faster than the watchdog still gets MemoryError, or an error when it
    starts a process.
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
