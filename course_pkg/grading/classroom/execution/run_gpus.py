"""The GPUs of a run: one submission at a time on each, also among several runs on one machine.

A GPU whose memory a submission kept, or on which the trial before the first submission failed, is
retired: this run uses it no more. A submission without a GPU gets no device file, and an
environment that names no GPU.
"""

import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from course_pkg.common.files import readable_size
from course_pkg.grading.classroom.execution.runner_output import RunResult, State
from course_pkg.grading.questions.display import one_line
from course_pkg.sandbox.gpus import Gpu, GpuMemory, find_gpus, library_path
from course_pkg.sandbox.namespaces import SandboxFailed
from course_pkg.sandbox.policy import View
from course_pkg.sandbox.process import SandboxedProcess

POLL_S = 0.5  # between two tries to get a GPU that another run uses
NO_JOBS = "--gpu-jobs 0 says to use none"
NOT_MEASURED = "GPU memory could not be measured, so the grader can't tell whether it was released"
TRIAL = """
import torch

if torch.version.cuda is None:
    raise RuntimeError(f"torch {torch.__version__} is a CPU build")
assert int(torch.ones(2, device="cuda").sum()) == 2
"""


class NoGpu(RuntimeError):
    """A submission needs a GPU, and this run has none; the message says why."""


class GpuPool:
    """The GPUs that a run may use; several threads may lease them.

    Args:
        required: whether a submission without a GPU must wait.
        why: why there are none, or not all.
        folder: of the locks that all runs on this machine share.
    """

    def __init__(
        self, gpus: Sequence[Gpu], required: bool, why: str = "", folder: Path | None = None
    ) -> None:
        self.required = required
        self.why = why
        self._gpus = list(gpus)
        self._folder = folder or Path(tempfile.gettempdir())
        self._had_some = bool(gpus)
        self._busy: set[str] = set()
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._gpus)

    @property
    def lost(self) -> bool:
        return self._had_some and not self._gpus

    @contextmanager
    def lease(self) -> Iterator[Gpu | None]:
        """Wait for a GPU and hold it for the block. None if there is none, and none is required.

        Raises:
            NoGpu: there is none, and one is required.
            SandboxFailed: the pool is closed.
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
        """Give a GPU, or all for None, to no other submission of this run."""
        with self._changed:
            self._gpus = [one for one in self._gpus if gpu not in (None, one)]
            self.why = why
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self) -> tuple[Gpu | None, int]:
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


def gpu_pool(need: str, jobs: int | None) -> GpuPool | None:
    """The GPUs for an assignment; None if it uses none.

    Args:
        need: "none", "optional" or "required".
        jobs: GPUs to use at most; None for all.
    """
    if need == "none":
        return None
    if jobs == 0:
        return GpuPool((), need == "required", NO_JOBS)
    gpus, reasons = find_gpus()
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


class GpuRun:
    """One submission's use of a GPU. A context manager around the life of its kernel.

    Args:
        limit_bytes: of the GPU's memory; above it the kernel is killed. None for no limit.
    """

    def __init__(
        self, gpu: Gpu, pool: GpuPool, limit_bytes: int | None, kernel: SandboxedProcess
    ) -> None:
        self.gpu = gpu
        self._pool = pool
        self._limit = limit_bytes
        self._memory = GpuMemory(gpu, limit_bytes, kernel.kill)

    def __enter__(self) -> "GpuRun":
        self._memory.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.stop()

    def ended(self, result: RunResult) -> None:
        """Fill in the result, after the kernel was killed. Retires a GPU that is not free again."""
        self._memory.stop()
        kept = self._memory.kept_bytes()
        peak = self._memory.peak_bytes
        result.gpu = self.gpu.name
        result.gpu_peak_bytes = peak
        if self._memory.too_much:
            used = readable_size(peak or 0)
            most = readable_size(self._limit or 0)
            result.end(
                State.OUT_OF_MEMORY, f"it used {used} of the GPU's memory; its limit is {most}"
            )
        if not self._memory.measured:
            result.remarks += (NOT_MEASURED,)
        if kept:
            why = (
                f"{readable_size(kept)} of the memory of {self.gpu} stayed in use after it was "
                "killed, by it or by another program"
            )
            result.remarks += (f"{why}; this run gave that GPU to nobody else",)
            self._pool.retire(self.gpu, f"{why}: see `nvidia-smi`")


def gpu_view(view: View | None, gpu: Gpu | None) -> View | None:
    """What a sandbox shows, with the files of a GPU if it has one."""
    if view is None or gpu is None:
        return view
    return replace(view, readable=view.readable + gpu.readable, devices=dict(gpu.devices))


def gpu_environment(gpu: Gpu | None, limit_bytes: int | None) -> dict[str, str]:
    """Environment variables that name the GPU of a submission, or say that there is none."""
    if gpu is None:
        return {"CUDA_VISIBLE_DEVICES": ""}
    environment = {"CUDA_VISIBLE_DEVICES": gpu.uuid}
    if folders := library_path():
        environment["LD_LIBRARY_PATH"] = folders
    if limit_bytes and gpu.total_bytes and limit_bytes < gpu.total_bytes:
        # An honest program gets torch's OutOfMemoryError before the watchdog sees the limit.
        share = limit_bytes / gpu.total_bytes
        environment["PYTORCH_CUDA_ALLOC_CONF"] = f"per_process_memory_fraction:{share:.4f}"
    return environment


def fork_server_environment(pool: GpuPool | None) -> dict[str, str]:
    """Environment variables of the fork server: no import in it may touch a GPU.

    A check whether there is a GPU would start the driver, which then fails in every child.
    """
    environment = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    if pool and (folders := library_path()):
        environment["LD_LIBRARY_PATH"] = folders
    return environment


def trial_failure(result: RunResult) -> str:
    """Why the trial on a GPU failed; "" if it did not."""
    if result.state != State.GRADED:
        return result.reason
    for output in result.outputs.get(0, []):
        if output.get("output_type") == "error":
            return one_line(f"{output.get('ename')}: {output.get('evalue')}", 300)
    return ""
