"""Run submissions on this machine: each kernel in one sandbox, its checker in another.

Verdicts come from the checker alone. The lines from the student's sandbox are untrusted: they say
what to show, never what to score. A plain nbgrader assignment has no checker, and its score comes
from those lines.
"""

import io
import os
import queue
import socket
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from course_pkg.common.errors import FailedError
from course_pkg.common.files import private_folder
from course_pkg.grading.classroom.execution import run_gpus
from course_pkg.grading.classroom.execution.assignment import ClassAssignment
from course_pkg.grading.classroom.execution.run_gpus import (
    GpuRun,
    fork_server_environment,
    gpu_environment,
    gpu_pool,
    gpu_view,
    trial_failure,
)
from course_pkg.grading.classroom.execution.runner_output import (
    MAX_RESULTS,
    NoSandbox,
    RunLimits,
    RunResult,
    State,
    explain,
    read_all,
    read_runner_output,
)
from course_pkg.grading.classroom.execution.sandbox_views import (
    DEBUGGER,
    QUIET_DEBUGGER,
    checker_view,
    kernel_modules,
    known_places,
    student_view,
)
from course_pkg.lm import smollm2
from course_pkg.sandbox import policy
from course_pkg.sandbox.fork_server import ForkServer
from course_pkg.sandbox.gpus import Gpu
from course_pkg.sandbox.limits import ResourceLimits
from course_pkg.sandbox.namespaces import SandboxFailed, memory_file
from course_pkg.sandbox.policy import View
from course_pkg.sandbox.probe import SandboxState
from course_pkg.sandbox.process import SandboxedProcess

BASE_UID = 0x7000_0000  # no account, container or service has ids as high as these
JUDGE_WITHIN_S = 60.0  # without artifacts
SLOTS = 32  # submissions that can run at a time
SO_PASSRIGHTS = 83
RUNNER = "course_pkg.grading.classroom.execution.notebook_runner:run"
CHECKER = "course_pkg.grading.checker_process"


class ExecutorLost(FailedError, RuntimeError):
    """No submission can be run any longer; the message says why, and how to continue."""


class LocalExecutor:
    """Runs submissions on this machine; several threads may use it. A context manager.

    `ClusterExecutor` has the same methods. Where the assignment requires a GPU and there is none,
    no process starts, and every submission raises NoGpu.

    Args:
        hidden: the folder that no sandbox may see.
        jobs: submissions to run at a time, 1 to 32.
        gpu_jobs: GPUs to use at most; None for all.
    """

    def __init__(
        self,
        assignment: ClassAssignment,
        hidden: Path,
        limits: RunLimits,
        jobs: int,
        gpu_jobs: int | None,
    ) -> None:
        if not 1 <= jobs <= SLOTS:
            raise ValueError(f"jobs is {jobs}; expected 1 to {SLOTS}")
        self._assignment = assignment
        self._hidden = hidden
        self._limits = limits
        self._jobs = jobs
        self._gpus = gpu_pool(assignment.gpu, gpu_jobs)
        self._uid = None if os.geteuid() else BASE_UID + (os.getpid() % 2**22) * 2 * SLOTS
        self._slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(jobs):
            self._slots.put(slot)
        self._student_view: View | None = None
        self._checker_view: View | None = None
        self._servers: list[ForkServer] = []  # that of the kernels, and perhaps of the checkers
        self._running: set[SandboxedProcess] = set()
        self._stopped = False
        self._stack = ExitStack()

    def __enter__(self) -> "LocalExecutor":
        if self._all_wait():
            return self
        if self._assignment.models:
            smollm2.prepare()  # no sandbox can write the cache
        if self._limits.sandboxed:
            disk_bytes = self._limits.disk_bytes
            self._student_view = student_view(self._assignment, self._hidden, disk_bytes)
            if self._assignment.checks:
                self._checker_view = checker_view(self._assignment, self._hidden)
        private = self._stack.enter_context(private_folder("course-fork-"))
        extra = {**known_places(), **QUIET_DEBUGGER, "TMPDIR": str(private)}
        env = policy.environment(extra | fork_server_environment(self._gpus))
        kernels = ForkServer(RUNNER, kernel_modules(self._assignment), env)
        self._servers.append(self._stack.enter_context(kernels))
        if self._assignment.checks:
            prepare = f"{CHECKER}:prepare:{self._assignment.name}"
            checkers = ForkServer(f"{CHECKER}:run", [prepare], forked_by=kernels)
            self._servers.append(self._stack.enter_context(checkers))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ready(self) -> None:
        """Wait for the fork servers, then run a trial. Raises SandboxFailed or NoSandbox."""
        for server in self._servers:
            server.ready()
        if self._gpus:
            if not (why := trial_failure(self._trial(on_gpu=True))):
                return
            self._gpus.retire(None, f"the GPU can't be used in a sandbox here ({why})")
        if self._all_wait():
            return
        trial = self._trial(on_gpu=False)
        why = ""
        if trial.state != State.GRADED:
            why = trial.reason or trial.state
        elif self._assignment.checks and not trial.verdicts:
            why = f"its checker wrote no results: {trial.no_verdicts}"
        if why:
            raise NoSandbox(
                SandboxState(False, f"a trial run failed: {why}", "run `course doctor`")
            )

    def room(self) -> int:
        """How many submissions to run at a time: two for each GPU, as one is judged meanwhile."""
        return min(self._jobs, 2 * len(self._gpus)) if self._gpus else self._jobs

    def without_gpu(self) -> str:
        """Why submissions that could use a GPU get none; "" if they do, or use none."""
        return self._gpus.why or "none" if self._gpus is not None and not self._gpus else ""

    def run_submission(
        self, student: str, key: bytes, packed: bytes, called: tuple[str, ...] = ()
    ) -> RunResult:
        """Run one submission, after waiting for a GPU if it uses one.

        Args:
            key, packed: from `submission_key` and `pack`.
            called: names that the student may use in the notebook.

        Raises:
            SandboxFailed: the grader fails.
            NoGpu: a GPU is required, and there is none.
        """
        result = RunResult()
        with ExitStack() as stack:
            slot = self._slots.get()
            stack.callback(self._slots.put, slot)
            lease = stack.enter_context(ExitStack())
            gpu = None if self._gpus is None else lease.enter_context(self._gpus.lease())
            kernels, *checkers = self._servers
            began = time.monotonic()
            place = ""
            if not self._limits.sandboxed:
                unsafe = tempfile.TemporaryDirectory(
                    prefix="course-unsafe-", ignore_cleanup_errors=True
                )
                place = stack.enter_context(unsafe)
            kernel_end, checker_end = (stack.enter_context(s) for s in socket.socketpair())
            with suppress(OSError):  # from Linux 6.16 on: no descriptors through this socket
                checker_end.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
            verdicts, verdicts_in = _pipe(stack)
            lines, lines_in = _pipe(stack)
            secret = stack.enter_context(memory_file(key.hex().encode()))
            content = stack.enter_context(memory_file(packed))

            checker = None
            if checkers:
                limits = self._limits.checker()
                checker = self._process(self._checker_view, slot, SLOTS, limits, "checker")
                stack.enter_context(checker)
            view = gpu_view(self._student_view, gpu)
            kernel = self._process(view, slot, 0, self._limits.student(), "student")
            stack.enter_context(kernel)
            on_gpu = gpu and GpuRun(gpu, self._gpus, self._limits.gpu_bytes, kernel)
            if checker is not None:
                ends = [end.fileno() for end in (verdicts_in, checker_end, secret)]
                job = {"assignment": self._assignment.name, "student": student, "called": called}
                checker.start(*checkers, job, ends)
            processes = [process for process in (checker, kernel) if process is not None]
            stack.enter_context(self._can_be_stopped(processes))
            ends = [end.fileno() for end in (lines_in, kernel_end, content)]
            kernel.start(kernels, self._job(place, gpu), ends)
            if on_gpu is not None:
                stack.enter_context(on_gpu)
            for mine in (verdicts_in, checker_end, lines_in):
                mine.close()

            read_runner_output(result, lines.fileno(), self._limits, began)
            explain(result, kernel, self._limits)
            kernel.kill()
            if on_gpu is not None:
                on_gpu.ended(result)
            lease.close()  # the next submission runs on the GPU while this one is judged

            with suppress(OSError):  # the checker judges now, even if the other end is still open
                kernel_end.shutdown(socket.SHUT_RDWR)
            if checker is not None:
                within_s = JUDGE_WITHIN_S + self._assignment.artifacts_s
                result.verdicts, why = read_all(verdicts.fileno(), MAX_RESULTS, within_s)
                if checker.enforcer.out_of_memory():
                    why = "it used more than its memory"
                result.no_verdicts = why
            died = result.state == State.KERNEL_DIED or (checker and not result.verdicts)
            if died and not all(server.alive() for server in self._servers):
                raise SandboxFailed("the fork server has ended")
        result.run_s = time.monotonic() - began - result.start_s
        if self._gpus is not None and self._gpus.lost and not result.gpu:
            result.remarks += (f"it ran on the CPU: {self._gpus.why}",)
        return result

    def stop(self) -> None:
        self._stopped = True
        if self._gpus is not None:
            self._gpus.close()
        for process in list(self._running):
            process.kill()

    def _all_wait(self) -> bool:
        return self._gpus is not None and self._gpus.required and not self._gpus

    def _trial(self, on_gpu: bool) -> RunResult:
        cells = [new_code_cell(run_gpus.TRIAL)] if on_gpu else []
        return self.run_submission("", b"trial", pack(new_notebook(cells=cells), {}))

    def _process(
        self, view: View | None, slot: int, uids: int, limits: ResourceLimits, name: str
    ) -> SandboxedProcess:
        """The sandbox of a submission's kernel or checker, each of which has `SLOTS` user ids."""
        uid = None if self._uid is None else self._uid + uids + slot
        return SandboxedProcess(view, uid, limits, f"{os.getpid()}-{slot}-{name}")

    @contextmanager
    def _can_be_stopped(self, processes: list[SandboxedProcess]) -> Iterator[None]:
        self._running.update(processes)
        if self._stopped:
            raise SandboxFailed("the run was interrupted")
        try:
            yield
        finally:
            self._running.difference_update(processes)

    def _job(self, place: str, gpu: Gpu | None) -> dict[str, Any]:
        extra = known_places() | DEBUGGER | gpu_environment(gpu, self._limits.gpu_bytes)
        return {
            "work": f"{place}/home/student/work",
            "runtime": f"{place}/tmp/.runtime",
            "environment": policy.environment(extra),
            "cell_timeout_s": self._limits.cell_timeout_s,
            "max_output_bytes": self._limits.output_bytes,
        }


def _pipe(stack: ExitStack) -> tuple[Any, Any]:
    out, into = os.pipe()
    reader = stack.enter_context(os.fdopen(out, "rb", 0))
    return reader, stack.enter_context(os.fdopen(into, "wb", 0))


def pack(notebook: NotebookNode, files: dict[str, bytes]) -> bytes:
    """A zip with the notebook first, then the files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("/notebook"), nbformat.writes(notebook))
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()
