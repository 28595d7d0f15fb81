"""Run the submissions of a run on this machine, several at a time.

`cluster.cluster_executor.ClusterExecutor` has the same methods for a cluster, each of whose workers
has a `LocalExecutor`.

Chapter: appendix/for-instructors.
"""

import io
import queue
import zipfile
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_pkg.common.errors import FailedError
from course_pkg.grading.classroom.assignment import ClassAssignment
from course_pkg.grading.classroom.execution.fork_servers import ForkServers
from course_pkg.grading.classroom.execution.run_gpus import (
    NoGpu,
    gpu_pool,
    trial_failure,
    trial_notebook,
)
from course_pkg.grading.classroom.execution.runner_output import NoSandbox, RunLimits, RunResult
from course_pkg.grading.classroom.results.record import State
from course_pkg.sandbox.probe import SandboxState


class ExecutorLost(FailedError, RuntimeError):
    """No submission can be run any longer; the message says why, and how to continue."""


class LocalExecutor:
    """Runs submissions on this machine; several threads may use it. A context manager.

    hidden: the folder that no sandbox may see. jobs: submissions to run at a time, 1 to 32.
    gpu_jobs: GPUs to use at most; None for all. Where the assignment requires a GPU and there is
    none, no process starts, and every submission raises NoGpu.
    """

    def __init__(
        self,
        assignment: ClassAssignment,
        hidden: Path,
        limits: RunLimits,
        jobs: int,
        gpu_jobs: int | None,
    ) -> None:
        self._jobs = jobs
        self._gpus = gpu_pool(assignment.gpu, gpu_jobs)
        all_wait = self._gpus is not None and self._gpus.required and not self._gpus
        self._servers = None if all_wait else ForkServers(assignment, hidden, limits, self._gpus)
        self._slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(jobs):
            self._slots.put(slot)

    def __enter__(self) -> "LocalExecutor":
        if self._servers is not None:
            self._servers.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._servers is not None:
            self._servers.__exit__(*error)

    def ready(self) -> None:
        """Wait for the fork servers, then run a trial notebook.

        Raises SandboxFailed, or NoSandbox if the trial fails: that is not a student's fault.
        """
        if self._servers is None:
            return
        self._servers.ready()
        if self._gpus:
            if not (why := trial_failure(self._trial(on_gpu=True))):
                return
            self._gpus.retire(None, f"the GPU can't be used in a sandbox here ({why})")
        if self._gpus is not None and self._gpus.required:
            return
        result = self._trial(on_gpu=False)
        if why := self._why_failed(result):
            raise NoSandbox(
                SandboxState(False, f"a trial run failed: {why}", "run `course doctor`")
            )

    def room(self) -> int:
        """How many submissions to run at a time: the jobs, but at most two for each GPU.

        One is judged while the next uses the GPU.
        """
        return min(self._jobs, 2 * len(self._gpus)) if self._gpus else self._jobs

    def without_gpu(self) -> str:
        """Why submissions that could use a GPU get none; "" if they do, or use none."""
        return self._gpus.why or "none" if self._gpus is not None and not self._gpus else ""

    def run_submission(
        self, student: str, key: bytes, packed: bytes, called: tuple[str, ...] = ()
    ) -> RunResult:
        """Run one submission: see `ForkServers.run_submission`."""
        if self._servers is None:
            raise NoGpu(self._gpus.why)
        slot = self._slots.get()
        try:
            result = self._servers.run_submission(student, key, packed, slot, called)
        finally:
            self._slots.put(slot)
        if self._gpus is not None and self._gpus.lost and not result.gpu:
            result.remarks += (f"it ran on the CPU: {self._gpus.why}",)
        return result

    def stop(self) -> None:
        """End every running submission at once, when the run is interrupted."""
        if self._servers is not None:
            self._servers.stop()

    def _why_failed(self, trial: RunResult) -> str:
        if trial.state != State.GRADED:
            return trial.reason or trial.state
        if self._servers.assignment.checks and not trial.verdicts:
            return f"its checker wrote no results: {trial.no_verdicts}"
        return ""

    def _trial(self, on_gpu: bool) -> RunResult:
        return self._servers.run_submission("", b"trial", pack(trial_notebook(on_gpu), {}), 0)


def pack(notebook: NotebookNode, files: dict[str, bytes]) -> bytes:
    """A zip with the notebook first, then the files.

    >>> len(pack(nbformat.v4.new_notebook(), {"notes.txt": b"a"})) > 100
    True
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("/notebook"), nbformat.writes(notebook))
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()
