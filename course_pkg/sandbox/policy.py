"""What a confined process may see: the whole policy, as the command line of bubblewrap.

Nothing is there but what `walls` names: the system's programs and this Python, read-only; the
package `course_pkg`, with some modules masked; a few made-up files of /etc; and empty folders of
its own to write in, gone when it ends. There is no network, no other process, and no way to the
grader's files, the gradebook, the solutions, or other students. Who enters, and with what rights,
is in `enter`; limits are in `limits`; the system calls that are denied are in `seccomp`.

Chapter: appendix/threat-model.
"""

import importlib.util
import os
import platform
import site
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from . import seccomp
from .probe import find_bubblewrap

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "fonts", "ssl")
INSIDE_UID = 1000  # in a user namespace; root's sandboxes have an id of their own instead
NAMESPACES = ("pid", "net", "ipc", "uts")
MIB = 1024 * 1024

Argument = str | bytes  # bytes stand for a file with that content, given as a descriptor


@dataclass(frozen=True)
class View:
    """What one kind of sandbox shows beside the system.

    readable: files and folders, read-only. hidden: folders that look empty, wherever they are,
    but for what is named in here and lies deeper. masks: a module's file or package folder -> the
    source that stands in its place. writable: a folder -> the bytes it may hold.
    """

    readable: tuple[Path, ...]
    hidden: tuple[Path, ...] = ()
    masks: dict[Path, str] = field(default_factory=dict)
    writable: dict[str, int] = field(default_factory=dict)


def walls(view: View, uid: int | None) -> list[Argument]:
    """The bubblewrap command line that builds the sandbox and then waits in it.

    uid: the user id that processes inside have if the caller is root and can drop to it; None for
    a user namespace. Raises FileNotFoundError where there is no bubblewrap.

    >>> "--unshare-net" in walls(View(()), None)
    True
    """
    bubblewrap = find_bubblewrap()
    if bubblewrap is None:
        raise FileNotFoundError("bubblewrap is not installed: apt-get install bubblewrap")
    line: list[Argument] = [str(bubblewrap)]
    line += [f"--unshare-{name}" for name in NAMESPACES]
    if uid is None:
        line += ["--unshare-user", "--uid", str(INSIDE_UID), "--gid", str(INSIDE_UID)]
    line += ["--cap-drop", "ALL", "--die-with-parent", "--new-session", "--hostname", "course"]
    if platform.machine() in seccomp.ARCHITECTURES:  # also for those who only wait inside
        line += ["--seccomp", seccomp.program(platform.machine())]
    if uid is None:  # what holds a capability can't be written to by what holds none
        line += ["--cap-add", "CAP_LEASE"]
    for path in SYSTEM:
        line += ["--ro-bind-try", path, path]
    for name in ETC:
        line += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    line += _accounts(INSIDE_UID if uid is None else uid)
    line += ["--proc", "/proc"]
    # Owners may write to some of these whatever their capabilities, so they are closed by hand.
    for name in ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "pressure"):
        line += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    if uid is None:  # bubblewrap's own process holds none, and is of the student's user
        line += ["--tmpfs", "/proc/1", "--remount-ro", "/proc/1"]
    line += ["--dev", "/dev"]
    for path, size in view.writable.items():
        line += ["--perms", "1777", "--size", str(size), "--tmpfs", path]
    deeper_later = sorted({*view.readable, *view.hidden}, key=lambda path: len(path.parts))
    for path in deeper_later:
        for folder in reversed(path.parents):
            line += ["--dir", str(folder)]  # or bubblewrap makes it, and for root's eyes only
        kind = ["--tmpfs"] if path in view.hidden else ["--ro-bind", str(path)]
        line += [*kind, str(path)]
    for path in view.hidden:
        line += ["--remount-ro", str(path)]
    for path, stub in view.masks.items():
        if path.is_dir():
            line += ["--tmpfs", str(path)]
            line += ["--perms", "0444", "--ro-bind-data", stub.encode(), str(path / "__init__.py")]
            line += ["--remount-ro", str(path)]
        else:
            line += ["--perms", "0444", "--ro-bind-data", stub.encode(), str(path)]
    return [*line, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/", "--", "cat"]


def _accounts(uid: int) -> list[Argument]:
    """/etc/passwd and its like, with one user: the student."""
    files = {
        "passwd": f"student:x:{uid}:{uid}::/home/student:/bin/sh\n",
        "group": f"student:x:{uid}:\n",
        "hosts": "127.0.0.1 localhost course\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }
    line: list[Argument] = []
    for name, text in files.items():
        line += ["--perms", "0444", "--ro-bind-data", text.encode(), f"/etc/{name}"]
    return line


def python_folders() -> tuple[Path, ...]:
    """The folders that this Python, its environment and course_pkg lie in, none inside another.

    Nothing else of sys.path is among them, and of the course's own folder only the package.

    >>> Path(__file__).resolve().parents[1] in python_folders()
    True
    """
    package = Path(__file__).resolve().parents[1]
    found = {
        Path(sys.prefix),
        Path(sys.base_prefix),
        Path(sys.executable).resolve().parent,
        package,
    }
    if site.ENABLE_USER_SITE and Path(site.getusersitepackages()).is_dir():
        found.add(Path(site.getusersitepackages()))
    outside = [path for path in found if not any(_within(path, Path(s)) for s in SYSTEM)]
    tops = [p for p in outside if not any(q != p and _within(p, q) for q in outside)]
    return tuple(sorted(tops))


def unused_packages() -> tuple[Path, ...]:
    """Folders of packages for other Pythons, or for the one that this environment stands on.

    This Python imports nothing from them; a program that adds one to sys.path could, and would
    find there what is masked here.

    >>> any(str(path) in sys.path for path in unused_packages())
    False
    """
    used = [Path(entry).resolve() for entry in (*sys.path, sys.prefix) if entry]
    roots = {Path("/usr"), Path("/usr/local"), Path(sys.base_prefix)}
    found = {
        path.resolve()
        for root in roots
        for kind in ("site", "dist")
        for path in root.glob(f"lib*/python3*/{kind}-packages")
    }
    return tuple(sorted(f for f in found if not any(_within(path, f) for path in used)))


def module_masks(modules: Iterable[str], stub: str) -> dict[Path, str]:
    """Where the named modules and packages lie, each with the source to show instead.

    A module that is not installed is left out.
    """
    masks = {}
    for name in modules:
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            continue
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin)
        masks[origin.parent if origin.name == "__init__.py" else origin] = stub.format(name=name)
    return masks


def environment(extra: dict[str, str], threads: int = 1) -> dict[str, str]:
    """All the environment variables that a confined process has: none of the grader's.

    >>> environment({})["HOME"]
    '/home/student'
    """
    bins = [str(Path(sys.prefix) / "bin"), str(Path(sys.base_prefix) / "bin"), "/usr/bin", "/bin"]
    fixed = {
        "PATH": os.pathsep.join(dict.fromkeys(bins)),
        "HOME": "/home/student",
        "USER": "student",
        "LOGNAME": "student",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {**fixed, **extra}


def _within(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents
