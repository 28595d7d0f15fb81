"""The GPUs of a run: one submission at a time on each, also among several runs on one machine.

A submission leases a GPU for as long as its sandbox exists. A GPU whose memory a submission kept,
or that can't be used in a sandbox, is retired: it takes no other submission in this run. CPU
assignments have no pool, so they never wait for one.

Chapter: appendix/gpu.
"""

import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from course_pkg.sandbox.gpus import Gpu, find_gpus
from course_pkg.sandbox.namespaces import SandboxFailed

from ..contract import registry

POLL_S = 0.5  # between two tries to get a GPU that another run uses
NO_JOBS = "--gpu-jobs 0 says to use none"


class NoGpu(RuntimeError):
    """A submission needs a GPU, and this run has none; the message says why."""


class GpuPool:
    """The GPUs that a run may use; several threads may lease them.

    required: whether a submission without a GPU must wait. why: why there are none, or not all.
    folder: of the locks that all runs on this machine share.
    """

    def __init__(
        self, gpus: Sequence[Gpu], required: bool, why: str = "", folder: Path | None = None
    ) -> None:
        self.required, self.why = required, why
        self._gpus, self._folder = list(gpus), folder or Path(tempfile.gettempdir())
        self._had_some = bool(gpus)
        self._busy: set[str] = set()
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._gpus)

    @property
    def lost(self) -> bool:
        """Whether there were GPUs, and all of them are retired."""
        return self._had_some and not self._gpus

    @contextmanager
    def lease(self) -> Iterator[Gpu | None]:
        """Wait for a GPU and hold it for the block. None if there is none, and none is required.

        Raises NoGpu if there is none, and one is required; SandboxFailed after `close`.
        """
        gpu, lock = self._take()
        try:
            yield gpu
        finally:
            if gpu is not None:
                os.close(lock)
                with self._changed:
                    self._busy.discard(gpu.uuid)
                    self._changed.notify_all()

    def retire(self, gpu: Gpu | None, why: str) -> None:
        """Give a GPU to no other submission of this run. gpu: None for all."""
        with self._changed:
            self._gpus = [one for one in self._gpus if gpu not in (None, one)]
            self.why = why
            self._changed.notify_all()

    def close(self) -> None:
        """End the waiting of every thread: the run was interrupted."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self) -> tuple[Gpu | None, int]:
        """A free GPU and the descriptor of its lock."""
        with self._changed:
            while True:
                if self._closed:
                    raise SandboxFailed("the run was interrupted")
                if not self._gpus and self.required:
                    raise NoGpu(self.why)
                if not self._gpus:
                    return None, -1
                for gpu in self._gpus:
                    free = gpu.uuid not in self._busy
                    if free and (lock := _locked(self._folder / f"course-{gpu.uuid}.lock")) >= 0:
                        self._busy.add(gpu.uuid)
                        return gpu, lock
                self._changed.wait(POLL_S)


def gpu_need(assignment: str) -> str:
    """Whether an assignment uses a GPU: "none", "optional" or "required".

    A plain nbgrader assignment, without questions, uses none.

    >>> gpu_need("lora-math"), gpu_need("ps1")
    ('none', 'none')
    """
    return registry.load(assignment).gpu if registry.has_checks(assignment) else "none"


def gpu_pool(assignment: str, jobs: int | None) -> GpuPool | None:
    """The GPUs for an assignment; None if it uses none. jobs: at most so many, None for all.

    >>> gpu_pool("lora-math", None) is None
    True
    """
    need = gpu_need(assignment)
    if need == "none":
        return None
    gpus, reasons = ((), (NO_JOBS,)) if jobs == 0 else find_gpus()
    return GpuPool(gpus[:jobs], need == "required", "; ".join(reasons))


def _locked(path: Path) -> int:
    """A descriptor that holds the lock on a file, or -1 if another process holds it.

    Every user may lock the file, which is never written: any of them may have created it.
    """
    while True:
        try:  # without O_CREAT, or the kernel refuses other users' files in /tmp
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            break
        except FileNotFoundError:
            flags = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with suppress(FileExistsError):  # another run was faster
                created = os.open(path, flags, 0o644)
                os.fchmod(created, 0o644)
                os.close(created)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return -1
    return descriptor
