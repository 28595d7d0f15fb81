"""One submission's sitting: a kernel in a sandbox, a checker in another, and what came of both.

`ForkServers` holds the two warm parents; its `sit` runs one submission from start to end and never
raises for what a student did. The score's rows come from the checker alone. The lines that come
from the student's sandbox are read as hostile: they say what to show, never what to score.

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

from nbformat import NotebookNode

from course_pkg.lm.cache import cache_root
from course_pkg.sandbox import policy
from course_pkg.sandbox.pen import Pen
from course_pkg.sandbox.policy import View
from course_pkg.sandbox.walls import SandboxFailed
from course_pkg.sandbox.warm import WarmParent
from course_pkg.sandbox.warm_kernel import pack

from ..check import CHECKER_FD
from ..contract import registry
from ..contract.outlines import Outline, from_json
from ..results.records import MAX_RESULTS
from ..results.states import State
from .options import RunLimits
from .runner_output import RunResult, follow, read_all

PACKAGE = Path(__file__).resolve().parents[2]
BASE_UID = 0x7000_0000  # no account, container or service has ids as high as these
JUDGE_WITHIN_S = 60.0
SLOTS = 32  # submissions at a time
SO_PASSRIGHTS = 83
MASKED = "raise ImportError('{name} is not to be had while your work is graded: use your own')\n"
MODELS = ("torch", "transformers.generation.utils", "transformers.models.auto.modeling_auto",
          "transformers.models.auto.tokenization_auto", "course_pkg.lm.load",
          "transformers.models.llama.modeling_llama", "course_pkg.lm.tiny")  # fmt: skip
NOTEBOOKS = ("IPython", "ipykernel.kernelapp", "nbclient", "matplotlib_inline.backend_inline",
             "course_pkg.grading.check")  # fmt: skip


class ForkServers:
    """The two warm parents of a run over one assignment. Use as a context manager.

    course: the folder that no sandbox may show.
    """

    def __init__(self, assignment: str, course: Path, limits: RunLimits) -> None:
        self.assignment, self.limits = assignment, limits
        self._uid = None if os.geteuid() else BASE_UID + (os.getpid() % 2**22) * 2 * SLOTS
        self._checker_view = self._student_view = None
        self._running: set[Pen] = set()
        self._stopped = False
        if limits.sandboxed:
            self._checker_view = View(
                policy.python_folders(), hidden=(course.resolve(), PACKAGE.parent)
            )
            self._student_view = student_view(assignment, course, limits.disk_bytes)
        self._stack = ExitStack()
        self._kernels = self._checkers = None

    def ready(self) -> None:
        """Start both warm parents, side by side, and wait until they are warm.

        Raises SandboxFailed where one doesn't start.
        """
        ask = registry.ask_module(self.assignment)
        trusted = f"{ask.removesuffix('.ask')}.trusted"
        private = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="course-warm-"))
        env = policy.environment({"PYTHONPATH": str(PACKAGE.parent), "TMPDIR": private})
        kernel, checker = "course_pkg.sandbox.warm_kernel:run", "course_pkg.grading.checker:run"
        kernels = WarmParent(kernel, (*MODELS, *NOTEBOOKS, ask), env)
        self._kernels = self._stack.enter_context(kernels)
        checkers = WarmParent(checker, (*MODELS, trusted), env)
        self._checkers = self._stack.enter_context(checkers)
        self._kernels.ready()
        self._checkers.ready()

    def outlines(self) -> dict[str, Outline]:
        """The outlines of the assignment's questions, by name. Raises SandboxFailed."""
        with ExitStack() as stack:
            out, into = _pipe(stack)
            limits, name = self.limits.checker(), f"{os.getpid()}-outlines"
            pen = stack.enter_context(Pen(self._checker_view, self._uid, limits, name))
            pen.put(self._checkers, {"assignment": self.assignment}, [into.fileno()])
            into.close()
            text = read_all(out.fileno(), MAX_RESULTS, JUDGE_WITHIN_S)
        try:
            return from_json(text)
        except (ValueError, TypeError, KeyError) as error:
            raise SandboxFailed(f"the checker gave no outlines: {error}") from None

    def sit(
        self, student: str, key: bytes, notebook: NotebookNode, files: dict[str, bytes], slot: int
    ) -> RunResult:
        """Run one submission. slot: a number that no other submission has at the same time.

        key: that student's, for this assignment. Raises SandboxFailed where the grader fails.
        """
        began = time.monotonic()
        if not 0 <= slot < SLOTS:
            raise ValueError(f"slot {slot}; wanted 0 to {SLOTS - 1}")
        uids = (None, None) if self._uid is None else (self._uid + slot, self._uid + SLOTS + slot)
        sat, name = RunResult(), f"{os.getpid()}-{slot}"
        with ExitStack() as stack:
            place = stack.enter_context(_place(self.limits.sandboxed))
            kernel_end, checker_end = (stack.enter_context(s) for s in socket.socketpair())
            with suppress(OSError):  # from Linux 6.16 on: no descriptors through this socket
                checker_end.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
            results, results_in = _pipe(stack)
            lines, lines_in = _pipe(stack)
            secret = _file(stack, key.hex().encode())
            hand_in = _file(stack, pack(notebook, files))
            checker = Pen(self._checker_view, uids[1], self.limits.checker(), f"{name}-checker")
            stack.enter_context(checker)
            pen = stack.enter_context(
                Pen(self._student_view, uids[0], self.limits.student(), f"{name}-student")
            )
            ends = [end.fileno() for end in (results_in, checker_end, secret)]
            checker.put(self._checkers, {"assignment": self.assignment, "student": student}, ends)
            stack.enter_context(self._can_be_stopped(pen, checker))
            ends = [end.fileno() for end in (lines_in, kernel_end, hand_in)]
            pen.put(self._kernels, self._job(place), ends)
            for mine in (results_in, checker_end, lines_in):
                mine.close()
            follow(sat, lines.fileno(), self.limits, began)
            if sat.state in (State.KERNEL_DIED, State.GRADING_ERROR):
                self._memory(sat, pen)
            if pen.fence.out_of_processes():
                sat.remarks = (f"it wanted more than {self.limits.processes} processes at once",)
            sat.limits, sat.peak_bytes = pen.kept_by, pen.fence.peak_bytes()
            pen.end()
            with suppress(OSError):  # whoever still holds that end, the checker judges now
                kernel_end.shutdown(socket.SHUT_RDWR)
            sat.rows = read_all(results.fileno(), MAX_RESULTS, JUDGE_WITHIN_S)
        sat.run_s = time.monotonic() - began - sat.start_s
        return sat

    def stop(self) -> None:
        """End every submission that is being run, now; for when the run is broken off."""
        self._stopped = True
        for pen in list(self._running):
            pen.end()

    @contextmanager
    def _can_be_stopped(self, *pens: Pen) -> Iterator[None]:
        self._running.update(pens)
        if self._stopped:
            raise SandboxFailed("the run was broken off")
        try:
            yield
        finally:
            self._running.difference_update(pens)

    def _memory(self, sat: RunResult, pen: Pen) -> None:
        """Whether something died for want of memory, and whose fault that was."""
        if pen.fence.out_of_memory():
            most = f"{self.limits.memory_bytes / 2**30:g} GB"
            sat.state, sat.reason = State.OUT_OF_MEMORY, f"it used more than its {most} of memory"
        elif pen.fence.starved():
            sat.state, sat.reason = State.GRADING_ERROR, "the machine ran short of memory"

    def _job(self, place: str) -> dict[str, Any]:
        extra = {"PYTHONPATH": str(PACKAGE.parent), "COURSE_CACHE": str(cache_root())}
        return {
            "work": f"{place}/home/student/work",
            "runtime": f"{place}/tmp/.runtime",
            "environment": policy.environment(extra),
            "checker": CHECKER_FD,
            "cell_timeout_s": self.limits.cell_timeout_s,
            "max_output_bytes": self.limits.output_bytes,
        }

    def __enter__(self) -> "ForkServers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def student_view(assignment: str, course: Path, disk_bytes: int) -> View:
    """What a student's sandbox shows: this Python, the models, and no answer.

    course: the folder that holds submissions and solutions, which is kept out wherever it lies.
    """
    models = tuple(path.parent for path in cache_root().glob("*/manifest.json"))
    return View(
        policy.python_folders() + models + registry.student_side(assignment),
        hidden=(course.resolve(), PACKAGE.parent, registry.CHECKS, *policy.unused_packages()),
        masks=policy.module_masks(registry.masked(assignment), MASKED),
        writable=dict.fromkeys(("/home/student", "/tmp", "/dev/shm"), disk_bytes),
    )


@contextmanager
def _place(sandboxed: bool) -> Iterator[str]:
    """The root of the student's folders: that of the sandbox, or a temporary folder."""
    if sandboxed:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="course-unsafe-", ignore_cleanup_errors=True) as root:
        yield root


def _pipe(stack: ExitStack) -> tuple[Any, Any]:
    out, into = os.pipe()
    return stack.enter_context(os.fdopen(out, "rb", 0)), stack.enter_context(
        os.fdopen(into, "wb", 0)
    )


def _file(stack: ExitStack, content: bytes) -> Any:
    """A file in memory, at its beginning."""
    file = stack.enter_context(os.fdopen(os.memfd_create("course"), "w+b", 0))
    file.write(content)
    file.seek(0)
    return file
