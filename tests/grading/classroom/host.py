"""Detects what grading leaves on the machine: processes, mounts, cgroups, files.

`Watch` records the state before, and `left` compares it after. This process becomes the subreaper,
so that it sees every daemon. Attacks and stalls put MARK into all names that they create.
"""

import ctypes
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.exercises.assignments import ROOT

MARK = "course-attack"
PORT = 48613  # services that no student may reach
ABSTRACT = "\0course-attack-host"
SHARED = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/etc", "/")
KEPT = ("course_pkg", "exercises", "solutions")
PR_SET_CHILD_SUBREAPER = 36
NOBODY = 65534


class Watch:
    """The state of the machine and of folders of the course; `left` returns what is new."""

    def __init__(self, *folders: Path) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.folders = [*map(Path, SHARED), *folders]
        self.before = self._look()

    def left(self, grader: int, within: float = 60.0) -> dict[str, set[str]]:
        """What is new after the grader with that process id; waits for what is just ending."""
        end = time.monotonic() + within
        while True:
            now = self._look()
            new = {kind: now[kind] - self.before[kind] for kind in now}
            new["cgroups"] = groups(grader)
            new = {kind: things for kind, things in new.items() if things}
            if not new or time.monotonic() > end:
                return new
            time.sleep(0.2)

    def _look(self) -> dict[str, set[str]]:
        return {
            "processes": {
                f"{p.pid}" for p in psutil.Process().children(recursive=True) if _is_running(p)
            },
            "mounts": set(Path("/proc/self/mountinfo").read_text().splitlines()),
            "files": {str(path) for folder in self.folders for path in _with_mark(folder)},
            "sources": {f"{path} {path.stat().st_mtime_ns}" for path in _sources()},
            "shared memory": set(_shared_memory()),
            "keys": {line for line in _lines("/proc/keys") if MARK in line},
        }


def groups(grader: int) -> set[str]:
    """The control groups of the grader with that process id; others may vanish meanwhile."""
    folders = (folder for folder, _, _ in os.walk("/sys/fs/cgroup"))
    return {folder for folder in folders if f"/course-{grader}-" in folder}


def _shared_memory() -> Iterator[str]:
    """The keys that this user or nobody has created; a database on the machine has its own."""
    for kind in ("shm", "sem", "msg"):
        head, *lines = (x.split() for x in Path(f"/proc/sysvipc/{kind}").read_text().splitlines())
        for line in lines:
            if int(line[head.index("cuid")]) in (os.getuid(), NOBODY):
                yield line[0]


def is_running(process: psutil.Process) -> bool:
    """Whether the process exists, not another one with its id, and hasn't been killed.

    A killed one has no memory, so no command line. It stays as a zombie, or waiting for zombies of
    its own, where process 1 collects none, as in many containers.
    """
    try:
        return process.is_running() and bool(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def _is_running(process: psutil.Process) -> bool:
    try:  # not by its command line, which a student's program can erase
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False


def _with_mark(folder: Path) -> list[Path]:
    return list(folder.glob(f"*{MARK}*")) if folder.is_dir() else []


def _sources() -> list[Path]:
    paths = (path for name in KEPT for path in (ROOT / name).rglob("*"))
    return [path for path in paths if "__pycache__" not in path.parts and path.is_file()]


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


class Services:
    """Loopback services like those on a grader's machine; `met` lists who connected."""

    def __init__(self) -> None:
        self.met: list[str] = []
        self._sockets = [socket.create_server(("127.0.0.1", PORT))]
        self._sockets.append(socket.create_server(("::1", PORT), family=socket.AF_INET6))
        abstract = socket.socket(socket.AF_UNIX)
        abstract.bind(ABSTRACT)
        abstract.listen()
        self._sockets.append(abstract)

    def __enter__(self) -> "Services":
        for listener in self._sockets:
            threading.Thread(target=self._accept, args=[listener], daemon=True).start()
        return self

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = listener.accept()
            except OSError:
                return
            self.met.append(str(address))
            connection.close()

    def __exit__(self, *_: object) -> None:
        for listener in self._sockets:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
