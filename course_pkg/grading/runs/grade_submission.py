"""Run one submission: the kernel in one sandbox, the checker in another.

`ForkServers` holds the two fork servers that fork both. Its `run_submission` runs one submission
from start to end and never raises for what a student did. Verdicts come from the checker alone.
The lines from the student's sandbox are untrusted: they say what to show, never what to score.
A plain nbgrader assignment has no checker, and its score comes from those lines.

Chapter: appendix/threat-model.
"""

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from course_pkg.files import readable_size
from course_pkg.lm import smollm2
from course_pkg.lm.cache import cache_root
from course_pkg.sandbox import policy
from course_pkg.sandbox.fork_server import ForkServer
from course_pkg.sandbox.gpus import Gpu
from course_pkg.sandbox.namespaces import SandboxFailed, memory_file
from course_pkg.sandbox.process import SandboxedProcess

from ..contract import registry
from ..results.records import MAX_RESULTS
from ..results.states import State
from .gpu_pool import GpuPool
from .gpu_run import GpuRun, fork_server_environment, gpu_environment, gpu_view
from .options import RunLimits
from .preload import DEBUGGER, MODELS, NOTEBOOKS, QUIET_DEBUGGER
from .runner_output import RunResult, read_all, read_runner_output
from .views import PACKAGE, checker_view, student_view

BASE_UID = 0x7000_0000  # no account, container or service has ids as high as these
JUDGE_WITHIN_S = 60.0  # without artifacts
SLOTS = 32  # submissions that can run at a time
SO_PASSRIGHTS = 83


class ForkServers:
    """The fork servers that fork the kernels and checkers of one assignment. A context manager.

    course: the folder that no sandbox may see. gpus: for the kernels; None for an assignment that
    uses none. On entry both start to import their modules.
    """

    def __init__(
        self, assignment: str, course: Path, limits: RunLimits, gpus: GpuPool | None = None
    ) -> None:
        self.assignment, self.limits, self._gpus = assignment, limits, gpus
        self._uid = None if os.geteuid() else BASE_UID + (os.getpid() % 2**22) * 2 * SLOTS
        self._checker_view = self._student_view = None
        self._running: set[SandboxedProcess] = set()
        self._stopped = False
        self._course, self.checked = course, registry.has_checks(assignment)
        self._stack = ExitStack()
        self._kernels = self._checkers = None

    def __enter__(self) -> "ForkServers":
        models: tuple[str, ...] = ()
        if self.checked and registry.load(self.assignment).models:
            smollm2.prepare()  # no sandbox can write the cache
        if self.limits.sandboxed:
            self._student_view = student_view(self.assignment, self._course, self.limits.disk_bytes)
            self._checker_view = checker_view(self.assignment, self._course)
        student: list[str] = []
        if self.checked:
            models = MODELS if "torch" in registry.load(self.assignment).imports else ()
            student = [name for name in [registry.module_name(self.assignment, "student")] if name]
        private = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="course-fork-"))
        extra = {**_known_places(), **QUIET_DEBUGGER, "TMPDIR": private}
        env = policy.environment(extra | fork_server_environment(self._gpus))
        runner = "course_pkg.grading.runs.notebook_runner:run"
        kernels = ForkServer(runner, (*models, *NOTEBOOKS, *student), env)
        self._kernels = self._stack.enter_context(kernels)
        if self.checked:
            prepare = f"course_pkg.grading.checker:prepare:{self.assignment}"
            checkers = ForkServer(
                "course_pkg.grading.checker:run", [prepare], forked_by=self._kernels
            )
            self._checkers = self._stack.enter_context(checkers)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ready(self) -> None:
        """Wait until all modules are imported. Raises SandboxFailed, with the reason, if not."""
        for server in (self._kernels, self._checkers):
            if server is not None:
                server.ready()

    def run_submission(self, student: str, key: bytes, packed: bytes, slot: int) -> RunResult:
        """Run one submission. slot: a number that no other running submission has, 0 to 31.

        key, packed: from `submission_key` and `packed.pack`. Waits for a GPU if it uses
        one. Raises SandboxFailed if the grader fails, NoGpu if one is required and there is none.
        """
        if not 0 <= slot < SLOTS:
            raise ValueError(f"slot {slot}; expected 0 to {SLOTS - 1}")
        uids = (None, None) if self._uid is None else (self._uid + slot, self._uid + SLOTS + slot)
        result, name = RunResult(), f"{os.getpid()}-{slot}"
        with ExitStack() as stack:
            lease = stack.enter_context(ExitStack())
            gpu = None if self._gpus is None else lease.enter_context(self._gpus.lease())
            began = time.monotonic()
            place = stack.enter_context(_place(self.limits.sandboxed))
            kernel_end, checker_end = (stack.enter_context(s) for s in socket.socketpair())
            with suppress(OSError):  # from Linux 6.16 on: no descriptors through this socket
                checker_end.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
            verdicts, verdicts_in = _pipe(stack)
            lines, lines_in = _pipe(stack)
            secret = stack.enter_context(memory_file(key.hex().encode()))
            content = stack.enter_context(memory_file(packed))
            checker = None
            if self._checkers is not None:
                checker = SandboxedProcess(
                    self._checker_view, uids[1], self.limits.checker(), f"{name}-checker"
                )
                stack.enter_context(checker)
            view = gpu_view(self._student_view, gpu)
            kernel = SandboxedProcess(view, uids[0], self.limits.student(), f"{name}-student")
            stack.enter_context(kernel)
            on_gpu = gpu and GpuRun(gpu, self._gpus, self.limits.gpu_bytes, kernel)
            if checker is not None:
                ends = [end.fileno() for end in (verdicts_in, checker_end, secret)]
                job = {"assignment": self.assignment, "student": student}
                checker.start(self._checkers, job, ends)
            stack.enter_context(self._can_be_stopped(*filter(None, (kernel, checker))))
            ends = [end.fileno() for end in (lines_in, kernel_end, content)]
            kernel.start(self._kernels, self._job(place, gpu), ends)
            if on_gpu is not None:
                stack.enter_context(on_gpu)
            for mine in (verdicts_in, checker_end, lines_in):
                mine.close()
            read_runner_output(result, lines.fileno(), self.limits, began)
            if result.state in (State.KERNEL_DIED, State.GRADING_ERROR):
                self._check_memory(result, kernel)
            if kernel.enforcer.out_of_processes():
                result.remarks = (
                    f"it tried to run more than {self.limits.processes} processes at once",
                )
            result.limits, result.peak_bytes = kernel.enforced_by, kernel.enforcer.peak_bytes()
            kernel.kill()
            if on_gpu is not None:
                on_gpu.ended(result)
            lease.close()  # the next submission runs on the GPU while this one is judged
            with suppress(OSError):  # the checker judges now, even if the other end is still open
                kernel_end.shutdown(socket.SHUT_RDWR)
            if checker is not None:
                within_s = JUDGE_WITHIN_S + registry.load(self.assignment).artifacts_s
                result.verdicts, why = read_all(verdicts.fileno(), MAX_RESULTS, within_s)
                memory = "it used more than its memory" * checker.enforcer.out_of_memory()
                result.no_verdicts = memory or why
            if result.state == State.KERNEL_DIED or (checker and not result.verdicts):
                self._require_servers()
        result.run_s = time.monotonic() - began - result.start_s
        return result

    def stop(self) -> None:
        """End every running submission at once, when the run is interrupted."""
        self._stopped = True
        if self._gpus is not None:
            self._gpus.close()
        for process in list(self._running):
            process.kill()

    def _require_servers(self) -> None:
        """Raise SandboxFailed if a fork server has ended, and with it all that it forked."""
        for server in filter(None, (self._kernels, self._checkers)):
            if not server.alive():
                raise SandboxFailed("the fork server has ended")

    @contextmanager
    def _can_be_stopped(self, *processes: SandboxedProcess) -> Iterator[None]:
        self._running.update(processes)
        if self._stopped:
            raise SandboxFailed("the run was interrupted")
        try:
            yield
        finally:
            self._running.difference_update(processes)

    def _check_memory(self, result: RunResult, kernel: SandboxedProcess) -> None:
        """Find out whether a process died for lack of memory, and whose fault that was."""
        if kernel.enforcer.out_of_memory():
            limit = readable_size(self.limits.memory_bytes)
            result.state, result.reason = (
                State.OUT_OF_MEMORY,
                f"it used more than its {limit} of memory",
            )
        elif kernel.enforcer.killed_within_limits():
            result.state, result.reason = State.GRADING_ERROR, "the machine ran short of memory"

    def _job(self, place: str, gpu: Gpu | None) -> dict[str, Any]:
        extra = _known_places() | DEBUGGER | gpu_environment(gpu, self.limits.gpu_bytes)
        return {
            "work": f"{place}/home/student/work",
            "runtime": f"{place}/tmp/.runtime",
            "environment": policy.environment(extra),
            "cell_timeout_s": self.limits.cell_timeout_s,
            "max_output_bytes": self.limits.output_bytes,
        }


@contextmanager
def _place(sandboxed: bool) -> Iterator[str]:
    """The root of the student's folders: the sandbox's root, or a temporary folder."""
    if sandboxed:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="course-unsafe-", ignore_cleanup_errors=True) as root:
        yield root


def _known_places() -> dict[str, str]:
    """Environment variables that say where the package, the models and received checks are."""
    received = os.environ.get(registry.RECEIVED)
    found = {"PYTHONPATH": str(PACKAGE.parent), "COURSE_CACHE": str(cache_root())}
    return found | ({registry.RECEIVED: received} if received else {})


def _pipe(stack: ExitStack) -> tuple[Any, Any]:
    out, into = os.pipe()
    both = os.fdopen(out, "rb", 0), os.fdopen(into, "wb", 0)
    return tuple(map(stack.enter_context, both))
