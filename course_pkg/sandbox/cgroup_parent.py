"""Find a control group in which this process may create others. Machines differ, so it tries.

It tries version 2 of the kernel's interface first, then version 1. `Cgroup` creates the groups
themselves. To create groups, the grader may have to move to another group; at exit it moves back.

Chapter: appendix/for-instructors.
"""

import atexit
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from course_pkg.sandbox.cgroups import Cgroup, CgroupParent, processes_in, words

PROC = Path("/proc")
NEEDED = {"memory", "pids"}
LEAF = "course-grader"  # the grader moves here if its own group must not hold processes


def find_parent() -> CgroupParent | None:
    """A group in which others can be created; None if there is none on this machine.

    Tries each candidate: creates a group, kills a process in it and removes it (about ten
    milliseconds). If the grader has a systemd scope to itself, it moves into a group below, so
    that other groups can be created beside it; at exit it moves back.
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
        found = {"cgroup": paths.keys() & set(options.split(",")), "cgroup2": {""}}
        for controller in found.get(kind, ()):
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
    """Remove the empty groups of graders that were killed."""
    for folder in {*parent.memory.glob("course-*-*"), *parent.pids.glob("course-*-*")}:
        if not (PROC / folder.name.split("-")[1]).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _parent_pid(pid: int) -> int:
    return int((PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()[1])
