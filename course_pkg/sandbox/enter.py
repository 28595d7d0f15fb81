"""How a forked child enters a sandbox that bubblewrap has built, and drops its privileges.

All of it happens before the first line of untrusted code runs.
"""

import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import Sequence

from course_pkg.sandbox import seccomp
from course_pkg.sandbox.limits import ResourceLimits, set_process_limits
from course_pkg.sandbox.policy import INSIDE_UID

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000
MS_NOSUID, MS_NOEXEC, MS_REMOUNT = 2, 8, 32
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 1, 4, 24, 36
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
KEYCTL = {"x86_64": 250, "aarch64": 219}  # keyctl(2); operation 1 joins a new session keyring
CAPSET = {"x86_64": 126, "aarch64": 91}
CAP_VERSION_3 = 0x2008_0522
NS_GET_USERNS = 0xB701  # ioctl: the user namespace that owns a namespace

libc = ctypes.CDLL(None, use_errno=True)


def enter(
    pidfd: int, join: Sequence[int], keep: Sequence[int], uid: int | None, limits: ResourceLimits
) -> None:
    """Become a process of the sandbox whose first process `pidfd` refers to.

    Forks: only the process inside returns. Raises OSError; the caller must then exit.

    Args:
        join: the enforcer's descriptors.
        keep: descriptors that stay open.
        uid: the user to become; None in a user namespace.
    """
    _join(join)
    if uid is None:
        _enter_owner_of_mounts(pidfd)
    _call(libc.setns(pidfd, CLONE_NEWNS), "setns to the mounts")
    _limit_terminals()
    kinds = CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    _call(libc.setns(pidfd, kinds | (CLONE_NEWUSER if uid is None else 0)), "setns")
    os.chdir("/")
    inner = os.fork()
    if inner:  # stays outside the process id namespace, only to wait for the process inside
        _drop(uid)
        _close_all_but(())
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) & 0xFF)
    os.setsid()
    _close_all_but(keep)
    machine = os.uname().machine
    if machine in KEYCTL:  # leave the keyring that all children of the fork server share
        libc.syscall(KEYCTL[machine], 1, None)
    _drop(uid)
    _verify(INSIDE_UID if uid is None else uid)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or /proc/self would belong to root
    set_process_limits(limits)
    seccomp.install()
    os.umask(0o022)
    _reset_signals()
    _reseed()


def enter_limits_only(join: Sequence[int], keep: Sequence[int]) -> None:
    """Come under the resource limits only: for `--unsafe-no-sandbox`. Nothing is protected."""
    _join(join)
    os.setsid()
    _close_all_but(keep)
    _reset_signals()
    _reseed()


def _join(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.write(descriptor, b"0")


def _enter_owner_of_mounts(pidfd: int) -> None:
    """Enter the user namespace that owns the mounts; bubblewrap nests another one for the user."""
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        pid = next(line.split()[1] for line in file if line.startswith("Pid:"))
    with open(f"/proc/{pid}/ns/mnt") as mounts:
        owner = fcntl.ioctl(mounts, NS_GET_USERNS)
    try:
        _call(libc.setns(owner, CLONE_NEWUSER), "setns to the owner of the mounts")
    finally:
        os.close(owner)


def _limit_terminals() -> None:
    """Allow 16 pseudo-terminals in this sandbox: the machine's total is shared by everyone."""
    how = MS_REMOUNT | MS_NOSUID | MS_NOEXEC
    options = b"newinstance,ptmxmode=0666,mode=620,max=16"
    _call(libc.mount(b"devpts", b"/dev/pts", b"devpts", how, options), "/dev/pts")


def _reset_signals() -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(name, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _drop(uid: int | None) -> None:
    """Give up all capabilities, users and groups, for good."""
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            break
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    machine = os.uname().machine
    if machine in CAPSET:
        header = (ctypes.c_uint32 * 2)(CAP_VERSION_3, 0)
        _call(libc.syscall(CAPSET[machine], header, (ctypes.c_uint32 * 6)()), "capset")
    _call(libc.prctl(seccomp.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _call(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent death signal")


def _verify(uid: int) -> None:
    if os.getresuid() != (uid,) * 3 or os.getresgid() != (uid,) * 3:
        raise OSError(f"still user {os.getresuid()}, group {os.getresgid()}; expected {uid}")
    with open("/proc/thread-self/status") as status:
        rows = dict(line.split(":", 1) for line in status)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        if int(rows[name], 16):
            raise OSError(f"{name} is {rows[name].strip()}; expected no capability")


def _close_all_but(keep: Sequence[int]) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    last = 2
    for descriptor in sorted(set(keep)):
        os.closerange(last + 1, descriptor)
        last = descriptor
    os.closerange(last + 1, os.sysconf("SC_OPEN_MAX"))


def _reseed() -> None:
    """Give this child its own random state of numpy; Python's own is new after a fork."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _call(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
