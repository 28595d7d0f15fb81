"""How a forked child enters a sandbox that bubblewrap has built, and gives up every right.

The few calls that bubblewrap can't make after a fork: join the limits, enter the namespaces, fork
once more (a process id namespace holds for children only), and drop user, groups, capabilities,
descriptors and system calls. Nothing here runs student's code; it runs just before it.

Chapter: appendix/threat-model.
"""

import ctypes
import fcntl
import os
import random
import signal
import sys
from collections.abc import Sequence

from . import seccomp
from .limits import Limits, child_limits
from .policy import INSIDE_UID

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000
MS_NOSUID, MS_NOEXEC, MS_REMOUNT = 2, 8, 32
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
KEYCTL = {"x86_64": 250, "aarch64": 219}  # its number; operation 1 joins a new session keyring
CAPSET = {"x86_64": 126, "aarch64": 91}
CAP_VERSION_3 = 0x2008_0522
NS_GET_USERNS = 0xB701  # asks a namespace for the user namespace that owns it

libc = ctypes.CDLL(None, use_errno=True)


def enter(
    pidfd: int, fence: Sequence[int], keep: Sequence[int], uid: int | None, limits: Limits
) -> None:
    """Become a process of the sandbox whose first process is `pidfd`'s; only that one returns.

    fence: descriptors that a "0" is written to, to join the limits. keep: descriptors that stay
    open. uid: the user to become; None in a user namespace. Raises OSError if a step fails; the
    caller must then exit.
    """
    for descriptor in fence:
        os.write(descriptor, b"0")
    if uid is None:
        _own_the_mounts(pidfd)
    _call(libc.setns(pidfd, CLONE_NEWNS), "setns to the mounts")
    _few_terminals()
    kinds = CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    _call(libc.setns(pidfd, kinds | (CLONE_NEWUSER if uid is None else 0)), "setns")
    os.chdir("/")
    inner = os.fork()
    if inner:  # stays outside the process namespace, only to collect the one inside
        _drop(uid)
        _close_all_but(())
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) & 0xFF)
    os.setsid()
    _close_all_but(keep)
    machine = os.uname().machine
    if machine in KEYCTL:  # the keyring that all children of the warm parent share
        libc.syscall(KEYCTL[machine], 1, None)
    _drop(uid)
    _verify(INSIDE_UID if uid is None else uid)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or /proc/self would belong to root
    child_limits(limits)
    if not seccomp.install():
        raise OSError(f"there is no filter of system calls for {os.uname().machine}")
    os.umask(0o022)
    _ordinary_signals()
    _reseed()


def _own_the_mounts(pidfd: int) -> None:
    """Enter the user namespace that bubblewrap mounts in: the one inside it only names the user."""
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        pid = next(line.split()[1] for line in file if line.startswith("Pid:"))
    with open(f"/proc/{pid}/ns/mnt") as mounts:
        owner = fcntl.ioctl(mounts, NS_GET_USERNS)
    try:
        _call(libc.setns(owner, CLONE_NEWUSER), "setns to the owner of the mounts")
    finally:
        os.close(owner)


def _few_terminals() -> None:
    """At most 16 pseudo-terminals in this sandbox: all of a machine's are counted together."""
    how = MS_REMOUNT | MS_NOSUID | MS_NOEXEC
    options = b"newinstance,ptmxmode=0666,mode=620,max=16"
    _call(libc.mount(b"devpts", b"/dev/pts", b"devpts", how, options), "/dev/pts")


def _ordinary_signals() -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(name, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def stay_outside(fence: Sequence[int], keep: Sequence[int]) -> None:
    """Join the limits, and nothing else: for `--unsafe-no-sandbox`. Nothing is confined."""
    for descriptor in fence:
        os.write(descriptor, b"0")
    os.setsid()
    _close_all_but(keep)
    _ordinary_signals()
    _reseed()


def _drop(uid: int | None) -> None:
    """No capability, no other user or group, and no way back to one."""
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
    _call(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _call(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent death signal")


def _verify(wanted: int) -> None:
    """That every right is gone, before a line of a student's is read. Raises OSError."""
    if os.getresuid() != (wanted,) * 3 or os.getresgid() != (wanted,) * 3:
        raise OSError(f"still user {os.getresuid()}, group {os.getresgid()}; wanted {wanted}")
    with open("/proc/thread-self/status") as status:
        rows = dict(line.split(":", 1) for line in status)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        if int(rows[name], 16):
            raise OSError(f"{name} is {rows[name].strip()}; wanted none")


def _close_all_but(keep: Sequence[int]) -> None:
    """Close every descriptor but those, and let 0, 1 and 2 be /dev/null."""
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    last = 2
    for descriptor in sorted(set(keep)):
        os.closerange(last + 1, descriptor)
        last = descriptor
    os.closerange(last + 1, os.sysconf("SC_OPEN_MAX"))


def _reseed() -> None:
    """Random states are copies of the warm parent's: give this child states of its own."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _call(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
