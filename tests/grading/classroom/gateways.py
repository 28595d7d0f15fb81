"""A gateway to a cluster that does what a test tells it, and a run that uses it."""

import json
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from course_pkg.common.scheduler_address import SchedulerAddress
from course_pkg.grading.classroom.cluster.cluster_executor import ClusterExecutor
from course_pkg.grading.classroom.cluster.gateway_process import Frame, FrameKind, receive, to_bytes
from course_pkg.grading.classroom.execution.assignment import resolve
from course_pkg.grading.classroom.execution.runner_output import RunLimits

LIMITS = RunLimits()
PATIENCE_S = 120.0  # for what comes at once, however busy the machine is
ANY = {FrameKind.START: 2**30, FrameKind.SUBMIT: 2**30}


class Gateway:
    """What replaces the gateway's process. now: what the run takes for the time, in seconds."""

    def __init__(self) -> None:
        self.sock, self.theirs = socket.socketpair()
        self.now = 0.0

    def last_words(self) -> str:
        return "Traceback: it was\nkilled"

    def end(self) -> None:
        self.theirs.close()

    def close(self) -> None:
        self.sock.close()

    def send(self, *sent: Frame) -> None:
        for frame in sent:
            self.theirs.sendall(to_bytes(frame))

    def get(self) -> Frame:
        return receive(self.theirs, ANY, lambda: PATIENCE_S)


@contextmanager
def opened(gateway: Gateway, note: Callable[[str], None] | None = None):
    """A run on that gateway. start: what it sent first. notes: what it has said."""
    notes: list[str] = []
    at = SchedulerAddress("tcp://127.0.0.1:1")
    what = (resolve("bleu"), LIMITS, at, note or notes.append)
    with ClusterExecutor(*what, lambda: gateway.now, lambda: gateway) as made:
        made.notes = notes
        made.start = json.loads(gateway.get().body)
        with ThreadPoolExecutor(8) as made.threads:
            try:
                yield made
            finally:  # also if the test fails, or the pool would wait for its threads
                made.stop()
                gateway.theirs.close()


def run(runs: ClusterExecutor, student: str = "ada", packed: bytes = b"zip") -> Future:
    return runs.threads.submit(runs.run_submission, student, b"key", packed)
