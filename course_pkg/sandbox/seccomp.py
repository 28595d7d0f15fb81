"""A filter of system calls: the kernel refuses those that untrusted code never needs.

A second line of defense, since most kernel vulnerabilities were in calls that a notebook does not
use. It lists what is denied, so everything else works: torch, multiprocessing, threads,
subprocesses and sockets on loopback.
"""

import ctypes
import errno
import os
import platform
import struct
from functools import cache

# Denied calls: (number on x86_64, number on aarch64), None where there is no such call.
Calls = dict[str, tuple[int | None, int | None]]
FORBIDDEN: Calls = {
    # Reads or controls another process, or takes its open files.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # Enters or creates namespaces: a new user namespace grants every capability.
    "setns": (308, 268),
    "unshare": (272, 97),
    # Changes mounts, or opens files without going through the mounted paths.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "inotify_init": (253, None),  # would show when others open a shared file
    "inotify_init1": (294, 26),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    # Uses the kernel's keyring, which namespaces do not separate.
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    # Large, new parts of the kernel in which vulnerabilities are found every year.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # Administers the machine: modules, kernels, swap, accounting, clock, log, host name.
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "syslog": (103, 116),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    # Remains from old systems and old processors.
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "uselib": (134, None),
    "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18),
}
MISSING: Calls = {
    # Uses up a limit that all processes of the machine share.
    "io_setup": (206, 0),
    # Memory that exists even if no process maps it: the watchdog could not count it; libraries
    # then use a temporary file or /dev/shm, which count.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    # Has its flags behind a pointer, which a filter can't follow; libc then calls clone.
    "clone3": (435, 435),
}
DENIED = {errno.EPERM: FORBIDDEN, errno.ENOSYS: MISSING}  # by the errno that the caller gets

NEW_NAMESPACE = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
UNIX, INET, INET6, NETLINK = 1, 2, 10, 16  # AF_*
ROUTES = 0  # NETLINK_ROUTE: libc lists network interfaces with it, for torch.distributed
COMMON = (1, 6, 17)  # PF_UNIX, TCP, UDP; for others the kernel would load modules
TYPING = (0x5412, 0x541C, 0x541D, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD
LEASES = (1024, 1026)  # F_SETLEASE and F_NOTIFY

ALLOW, FAIL = 0x7FFF0000, 0x00050000  # SECCOMP_RET_*; FAIL takes the errno in its low bits
REFUSE = FAIL | errno.EPERM
NEXT_STEP = None
LOAD, RETURN, JUMP, EQUAL, AT_LEAST, ANY_BIT = 0x20, 0x06, 0x05, 0x15, 0x35, 0x45  # opcodes

# Calls that are allowed for some arguments only. A step is (index of the argument, test, values,
# what to do if one of the values fits, what to do otherwise).
SOCKET = (
    (0, EQUAL, (UNIX, INET, INET6, NETLINK), NEXT_STEP, REFUSE),
    (2, EQUAL, (ROUTES,), ALLOW, NEXT_STEP),  # 0 is also the default protocol of other families
    (0, EQUAL, (NETLINK,), REFUSE, NEXT_STEP),
    (2, EQUAL, COMMON, ALLOW, REFUSE),
)
GUARDED = {
    "clone": ((56, 220), ((0, ANY_BIT, (NEW_NAMESPACE,), REFUSE, ALLOW),)),
    "socket": ((41, 198), SOCKET),
    "socketpair": ((53, 199), SOCKET),
    "personality": (
        (135, 92),
        ((0, EQUAL, (0xFFFFFFFF,), ALLOW, REFUSE),),
    ),  # reading it is allowed
    "ioctl": ((16, 29), ((1, EQUAL, TYPING, REFUSE, ALLOW),)),  # no input into terminals
    # A lease makes every other process that opens the file wait, also outside this sandbox.
    "fcntl": ((72, 25), ((1, EQUAL, LEASES, REFUSE, ALLOW),)),
}

ARCHITECTURES = ("x86_64", "aarch64")
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_* of linux/audit.h
SECCOMP = {"x86_64": 317, "aarch64": 277}  # the number of seccomp(2)
X32 = 0x40000000  # the first number of the x32 calls of x86_64
NUMBER, ARCH, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; low halves, little-endian
PR_SET_NO_NEW_PRIVS, SET_MODE_FILTER, EVERY_THREAD = 38, 1, 1


@cache
def program(arch: str) -> bytes:
    """The filter for one of `ARCHITECTURES` as the kernel expects it: 8 bytes per instruction.

    Calls of another architecture, and x32 calls, fail with ENOSYS.
    """
    if arch not in ARCHITECTURES:
        raise ValueError(f"no filter for {arch!r}; expected one of {', '.join(ARCHITECTURES)}")
    column = ARCHITECTURES.index(arch)
    code = [
        (LOAD, 0, 0, ARCH),
        (EQUAL, 1, 0, AUDIT[arch]),
        (RETURN, 0, 0, FAIL | errno.ENOSYS),
        (LOAD, 0, 0, NUMBER),
    ]
    if arch == "x86_64":
        code += [(AT_LEAST, 0, 1, X32), (RETURN, 0, 0, FAIL | errno.ENOSYS)]
    for error, calls in DENIED.items():
        for numbers in calls.values():
            if (number := numbers[column]) is not None:
                code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL | error)]
    for numbers, steps in GUARDED.values():
        guard = [instruction for step in steps for instruction in _compiled(*step)]
        code += [(EQUAL, 0, len(guard), numbers[column]), *guard]
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _compiled(
    argument: int, test: int, values: tuple[int, ...], fits: int | None, otherwise: int | None
) -> list[tuple[int, int, int, int]]:
    """The instructions of one step: load the argument, the tests, then the two outcomes."""
    tests = [(test, len(values) - i, 0, value) for i, value in enumerate(values)]
    no = (JUMP, 0, 0, 1) if otherwise is NEXT_STEP else (RETURN, 0, 0, otherwise)
    yes = (JUMP, 0, 0, 0) if fits is NEXT_STEP else (RETURN, 0, 0, fits)
    return [(LOAD, 0, 0, ARGUMENTS + 8 * argument), *tests, no, yes]


class _Program(ctypes.Structure):
    """struct sock_fprog: the number of instructions, and a pointer to them."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def install() -> None:
    """Apply the filter to every thread of this process, for good. Raises OSError.

    It covers all children and every program they start. Also sets no_new_privs, so that set-uid
    programs grant no privileges. Call it last, just before the untrusted code.
    """
    arch = platform.machine()
    if arch not in ARCHITECTURES or struct.calcsize("P") != 8:
        raise OSError(errno.ENOSYS, f"no system call filter for {arch}")
    code = program(arch)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))):
        raise OSError(ctypes.get_errno(), "no_new_privs can't be set")
    descriptor = _Program(len(code) // 8, code)
    number = ctypes.c_long(SECCOMP[arch])
    status = libc.syscall(number, SET_MODE_FILTER, EVERY_THREAD, ctypes.byref(descriptor))
    if status > 0:
        raise OSError(errno.EBUSY, f"thread {status} already has another filter")
    if status:
        raise OSError(error := ctypes.get_errno(), f"no system call filter: {os.strerror(error)}")
