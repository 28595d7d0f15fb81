"""What a sandboxed process may see: the whole policy, as bubblewrap's command line.

`enter` decides who the process is and what it may do, `limits` how much it may use, `seccomp` which
calls are denied.
"""

import importlib.util
import os
import platform
import site
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from course_pkg.sandbox import seccomp
from course_pkg.sandbox.probe import INSTALL, find_bubblewrap

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "fonts")
ETC += ("ssl/certs", "ssl/openssl.cnf")
OF_PREFIX = ("bin", "include", "lib", "lib64", "libexec", "share", "pyvenv.cfg")
PRIVATE = ("pip.conf", "etc/pip.conf", "uv.toml", ".netrc", ".pypirc", ".env", ".git")
INSIDE_UID = 1000  # in a user namespace; root gives every sandbox its own id instead
NAMESPACES = ("pid", "net", "ipc", "uts")
# Their owner may write to some of these even without capabilities, so they become read-only.
PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "pressure")

Argument = str | bytes  # bytes: the content of a file that is passed as a descriptor


@dataclass(frozen=True)
class View:
    """The files that a sandbox shows in addition to the system.

    Attributes:
        readable: files and folders, read-only.
        hidden: folders that look empty, except for readable paths inside them.
        masks: a module's file or package folder -> the source to show instead.
        writable: folder -> the number of bytes it may hold.
        devices: path inside -> a device file, such as a GPU's, that programs may open for reading
            and writing.
    """

    readable: tuple[Path, ...]
    hidden: tuple[Path, ...] = ()
    masks: dict[Path, str] = field(default_factory=dict)
    writable: dict[str, int] = field(default_factory=dict)
    devices: dict[str, Path] = field(default_factory=dict)


def bubblewrap_command(view: View, uid: int | None) -> list[Argument]:
    """The bubblewrap command line that creates the sandbox and then waits in it.

    The sandbox contains only what is named here. It has no network, no other processes, and no
    access to the grader's files, the gradebook, the solutions or other students.

    Args:
        uid: the user id of processes inside, if the caller is root and can switch to it; None for a
            user namespace.
    """
    bubblewrap = find_bubblewrap()
    if bubblewrap is None:
        raise FileNotFoundError(f"bubblewrap is not installed: {INSTALL}")
    line: list[Argument] = [str(bubblewrap)]
    line += [f"--unshare-{name}" for name in NAMESPACES]
    if uid is None:
        line += ["--unshare-user", "--uid", str(INSIDE_UID), "--gid", str(INSIDE_UID)]
    line += ["--cap-drop", "ALL", "--die-with-parent", "--new-session", "--hostname", "course"]
    if platform.machine() in seccomp.ARCHITECTURES:  # also for the processes that wait inside
        line += ["--seccomp", seccomp.program(platform.machine())]
    if uid is None:  # a process without capabilities can't write to one that has some
        line += ["--cap-add", "CAP_LEASE"]
    for path in SYSTEM:
        line += ["--ro-bind-try", path, path]
    line += ["--dir", "/etc", "--dir", "/etc/ssl"]  # or bubblewrap creates them for root only
    for name in ETC:
        line += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    line += _accounts(INSIDE_UID if uid is None else uid)
    line += ["--proc", "/proc"]
    for name in PROC:
        line += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    if uid is None:  # bubblewrap's own process has none, and belongs to the student's user
        line += ["--tmpfs", "/proc/1", "--remount-ro", "/proc/1"]
    line += ["--dev", "/dev"]
    for inside, outside in view.devices.items():
        line += ["--dev-bind", str(outside), inside]
    for path, size in view.writable.items():
        line += ["--perms", "1777", "--size", str(size), "--tmpfs", path]
    by_depth = sorted({*view.readable, *view.hidden}, key=lambda path: len(path.parts))
    for path in by_depth:
        for folder in reversed(path.parents):
            line += ["--dir", str(folder)]  # or bubblewrap creates it, readable by root only
        kind = ["--tmpfs"] if path in view.hidden else ["--ro-bind", str(path)]
        if path.is_symlink() and "/" not in (beside := os.readlink(path)):
            kind = ["--symlink", beside]  # lib64 -> lib: a copy would show what is masked in lib
        line += [*kind, str(path)]
    for path in view.hidden:
        line += ["--remount-ro", str(path)]
    for path in private_paths():
        if path.is_dir():
            line += ["--perms", "0555", "--tmpfs", str(path)]
        else:
            line += _file(path, "")
    for path, stub in view.masks.items():
        if path.is_dir():
            stub_file = _file(path / "__init__.py", stub)
            line += ["--tmpfs", str(path), *stub_file, "--remount-ro", str(path)]
        else:
            line += _file(path, stub)
    return [*line, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/", "--", "cat"]


def _accounts(uid: int) -> list[Argument]:
    files = {
        "passwd": f"student:x:{uid}:{uid}::/home/student:/bin/sh\n",
        "group": f"student:x:{uid}:\n",
        "hosts": "127.0.0.1 localhost course\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }
    return [part for name, text in files.items() for part in _file(f"/etc/{name}", text)]


def _file(path: Path | str, text: str) -> list[Argument]:
    return ["--perms", "0444", "--ro-bind-data", text.encode(), str(path)]


def python_folders() -> tuple[Path, ...]:
    """The folders of this Python, its environment and course_pkg, none inside another.

    Of an environment, only programs and libraries: pip's configuration beside them may hold a
    password. Other entries of sys.path are left out, as is the rest of the course's folder.
    """
    package = Path(__file__).resolve().parents[1]
    prefixes = {Path(sys.prefix), Path(sys.base_prefix)}
    folders = {prefix / name for prefix in prefixes for name in OF_PREFIX}
    folders = {path for path in folders if path.exists()}
    folders |= {Path(sys.executable).resolve().parent, package}
    if site.ENABLE_USER_SITE and Path(site.getusersitepackages()).is_dir():
        folders.add(Path(site.getusersitepackages()))
    outside = [path for path in folders if not any(_within(path, Path(s)) for s in SYSTEM)]
    tops = [p for p in outside if not any(q != p and _within(p, q) for q in outside)]
    return tuple(sorted(tops))


def private_paths() -> tuple[Path, ...]:
    """Files of the system's folders that may hold a password, such as pip's configuration."""
    roots = {Path("/usr"), Path("/usr/local"), Path(sys.prefix), Path(sys.base_prefix)}
    inside = [root for root in roots if any(_within(root, Path(s)) for s in SYSTEM)]
    paths = [root / name for root in inside for name in PRIVATE]
    return tuple(sorted(path for path in paths if path.exists()))


def unused_packages() -> tuple[Path, ...]:
    """Package folders of other Pythons, including the one that this environment is based on.

    This Python imports nothing from them, but a program could add one to sys.path, and import from
    it a library that is masked here.
    """
    used = [Path(entry).resolve() for entry in (*sys.path, sys.prefix) if entry]
    roots = {Path("/usr"), Path("/usr/local"), Path(sys.base_prefix)}
    packages = {
        path.resolve()
        for root in roots
        for kind in ("site", "dist")
        for path in root.glob(f"lib*/python3*/{kind}-packages")
    }
    return tuple(sorted(f for f in packages if not any(_within(path, f) for path in used)))


def module_masks(modules: Iterable[str], stub: str) -> dict[Path, str]:
    """The paths of the named modules that are installed, each with the source to show instead.

    Args:
        stub: the source; {name} stands for the module's name.
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


def environment(extra: dict[str, str]) -> dict[str, str]:
    """All environment variables of a sandboxed process: none of the grader's are passed on."""
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
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {**fixed, **extra}


def _within(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents
