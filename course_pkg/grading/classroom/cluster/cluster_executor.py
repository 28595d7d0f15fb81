"""Runs submissions on a cluster: the command's end. Imports no Dask.

The course's secret, the gradebook and the records stay in this process; another process, the
gateway, talks to the scheduler.
"""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict

from course_pkg.common.scheduler_address import SchedulerAddress
from course_pkg.grading.classroom.cluster import messages
from course_pkg.grading.classroom.cluster.gateway_process import (
    MAX_NOTE,
    MOST_BODY,
    NOTE_LENGTH,
    Frame,
    FrameKind,
    GatewayProcess,
    Liveness,
    Notes,
    receive,
    to_bytes,
)
from course_pkg.grading.classroom.cluster.messages import Preparation
from course_pkg.grading.classroom.cluster.placement import MOST_LOST
from course_pkg.grading.classroom.execution.assignment import ClassAssignment
from course_pkg.grading.classroom.execution.local_executor import JUDGE_WITHIN_S, ExecutorLost
from course_pkg.grading.classroom.execution.run_gpus import NoGpu
from course_pkg.grading.classroom.execution.runner_output import RunLimits, RunResult, State
from course_pkg.grading.questions.display import one_line
from course_pkg.sandbox.fork_server import START_WITHIN_S

MOST_BYTES = 256 * 2**20  # of submissions that were sent and have no result yet
SAY_AFTER_S = 5.0
CONNECT_S = 20.0  # for the scheduler to answer
SILENT_S = 120.0  # without a sign from the gateway, which gives two in each second
ATTEMPTS = 2 * MOST_LOST  # in the time of this many, at least one submission ends
READ_AT_ONCE = 2  # replies: reading a large one takes ten times its size in memory
GRACE_S = 5.0  # for better workers, if those that are there can't be used
AGAIN = "run the same command again to continue"
TOOK_DOWN = (
    f"{MOST_LOST} workers of the cluster ended while they ran it, the last one while it ran "
    "nothing else; to try again: --regrade --student ID, with the same --scheduler"
)


class ClusterExecutor:
    """Runs submissions on the workers of a scheduler. A context manager.

    Args:
        note: called, in any thread, with what an instructor should know during the run.
        start_gateway: starts the process that talks to the cluster.
    """

    def __init__(
        self,
        assignment: ClassAssignment,
        limits: RunLimits,
        scheduler: SchedulerAddress,
        note: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        start_gateway: Callable[[], GatewayProcess] = GatewayProcess,
    ) -> None:
        self._assignment = assignment
        self._limits = limits
        self._scheduler = scheduler
        self._note = note
        self._notes = Notes(note)
        self._start_gateway = start_gateway
        self._reply_s = reply_within_s(assignment, limits)
        self._liveness = Liveness(SILENT_S, ATTEMPTS * self._reply_s, clock)
        self._work = messages.work_of(assignment, limits)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Frame]] = {}
        self._changed = threading.Condition()
        self._room = self._bytes = 0
        self._why_lost = ""
        self._sending = threading.Lock()
        self._reading = threading.BoundedSemaphore(READ_AT_ONCE)

    def __enter__(self) -> "ClusterExecutor":
        files = {name: content.decode() for name, content in self._assignment.files.items()}
        start = {
            **asdict(self._scheduler),
            "run": self._work.run,
            "need": self._assignment.gpu,
            "connect_s": CONNECT_S,
            "reply_s": self._reply_s,
            "grace_s": GRACE_S,
            "asked": messages.preparation_bytes(Preparation(self._work)).decode(),
            "with_files": messages.preparation_bytes(Preparation(self._work, files)).decode(),
        }
        self._gateway = self._start_gateway()
        self._send(Frame(FrameKind.START, 0, json.dumps(start).encode()))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._gateway.end()
        self._reader.join()
        self._gateway.close()
        self._notes.close()

    def ready(self) -> None:
        """Wait until a worker can run submissions. Raises ExecutorLost if none will."""
        said = False
        with self._changed:
            while not self._room and not self._why_lost:
                if not self._changed.wait(SAY_AFTER_S) and not said:
                    said = True
                    self._note(f"waiting for a worker of {self._scheduler.address} to be ready")
        self._require_running()

    def room(self) -> int:
        """A quarter more submissions than the workers run at a time: the next ones wait there."""
        return max(1, self._room + self._room // 4 + 1)

    def run_submission(
        self, student: str, key: bytes, packed: bytes, called: tuple[str, ...] = ()
    ) -> RunResult:
        """Run one submission on some worker.

        Raises:
            NoGpu: it needs a GPU, and no worker has one.
            ExecutorLost: nothing can be run any longer.
            ValueError: a worker's reply is not what a run can give.
            RuntimeError: the worker's grader failed, with its reason.
        """
        task = messages.task_bytes(
            messages.SubmissionTask(self._work, student, key, packed, called)
        )
        with self._in_flight(len(task)):
            frame = self._answer(task)
        if frame.kind == FrameKind.GIVEN_UP:
            return RunResult(State.WORKERS_LOST, TOOK_DOWN)
        if frame.kind == FrameKind.NO_GPU:
            raise NoGpu(one_line(_text(frame), NOTE_LENGTH))  # in the line of each submission
        with self._reading:
            reply = messages.read_reply(frame.body, self._limits)
        if reply.result is None:
            raise RuntimeError(f"a worker could not run it: {reply.why}")
        return reply.result

    def stop(self) -> None:
        """End every running submission at once; the workers are told when the gateway closes."""
        self._lose("the run was interrupted")

    @contextmanager
    def _in_flight(self, size: int) -> Iterator[None]:
        """Wait until this many bytes may be sent; a larger submission goes alone."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._bytes or self._bytes + size <= MOST_BYTES or self._why_lost
            )
            self._bytes += size
        try:
            yield
        finally:
            with self._changed:
                self._bytes -= size
                self._changed.notify_all()

    def _answer(self, task: bytes) -> Frame:
        number = next(self._numbers)
        answer: Future[Frame] = Future()
        with self._changed:
            self._require_running()
            if not self._waiting:
                self._liveness.ended()
            self._waiting[number] = answer
        try:
            self._send(Frame(FrameKind.SUBMIT, number, task))
            return answer.result()
        finally:
            with self._changed:
                self._waiting.pop(number, None)

    def _require_running(self) -> None:
        if self._why_lost:
            raise ExecutorLost(f"{self._scheduler.address}: {self._why_lost}; {AGAIN}")

    def _send(self, frame: Frame) -> None:
        try:
            with self._sending:
                self._gateway.sock.sendall(to_bytes(frame))
        except OSError as error:
            self._lose(f"the gateway to the cluster has ended ({error})")

    def _read(self) -> None:
        most = MOST_BODY | {FrameKind.REPLY: messages.most_bytes(self._limits)}
        try:
            self._gateway.sock.settimeout(SILENT_S)  # to send to it: it may hang
            while not self._why_lost:
                self._take(receive(self._gateway.sock, most, self._seconds_left))
        except TimeoutError:
            self._lose(self._liveness.why(waiting=bool(self._waiting)))
        except (EOFError, OSError):
            said = self._gateway.last_words()
            self._lose(one_line(f"the gateway to the cluster has ended: {said}", 800))
        except Exception as error:  # of any kind, or what waits would wait without end
            self._lose(f"the gateway to the cluster can't be understood ({error})")

    def _seconds_left(self) -> float:
        return self._liveness.seconds_left(waiting=bool(self._waiting))

    def _take(self, frame: Frame) -> None:
        """Act on a frame. Only a sign of life or the end of a submission gives more time."""
        if frame.kind == FrameKind.NOTE:
            self._notes.take(frame.number, _text(frame))
        elif frame.kind == FrameKind.LOST:
            self._lose(_text(frame))
        elif frame.kind == FrameKind.ROOM:
            with self._changed:
                self._room = min(frame.number, 2**16)
                self._changed.notify_all()
        elif frame.kind == FrameKind.ALIVE:
            self._liveness.heard()
        else:
            with self._changed:
                answer = self._waiting.pop(frame.number, None)
            if answer is not None:
                self._liveness.ended()
                answer.set_result(frame)

    def _lose(self, why: str) -> None:
        with self._changed:
            self._why_lost = self._why_lost or why
            waiting = list(self._waiting.values())
            self._waiting = {}
            self._changed.notify_all()
        for answer in waiting:
            answer.set_exception(ExecutorLost(f"{self._scheduler.address}: {why}; {AGAIN}"))


def reply_within_s(assignment: ClassAssignment, limits: RunLimits) -> float:
    """How long a worker may take for a submission before it is refused.

    Twice what the limits allow, as another run's submission may be ahead of it on that worker.
    """
    judge_s = JUDGE_WITHIN_S + assignment.artifacts_s
    return 2 * (limits.time_limit_s + judge_s + 2 * START_WITHIN_S)


def _text(frame: Frame) -> str:
    return one_line(frame.body.decode(errors="replace"), MAX_NOTE)
