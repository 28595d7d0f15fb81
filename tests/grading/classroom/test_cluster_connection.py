"""A cluster whose connection breaks."""

import socket
import threading
from contextlib import suppress

import pytest

from course_pkg.common.scheduler_address import SchedulerAddress
from course_pkg.grading.classroom.execution.runner_output import State
from tests.grading.classroom import NEEDS_SANDBOX
from tests.waiting import wait_until

from .clusters import Class, Cluster

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, NEEDS_SANDBOX]


class Proxy:
    """A TCP connection to the scheduler that a test can break, as a tunnel or a router may."""

    def __init__(self, address: str) -> None:
        self._port = int(address.rpartition(":")[2])
        self._pairs = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.at = SchedulerAddress(f"tcp://127.0.0.1:{self._server.getsockname()[1]}")
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                ours, _ = self._server.accept()
            except OSError:
                return
            theirs = socket.create_connection(("127.0.0.1", self._port))
            self._pairs.append((ours, theirs))
            for pair in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                target.sendall(data)
        self._close(source, target)

    def _close(self, *ends: socket.socket) -> None:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def drop(self) -> int:
        """Break all connections; how many there were."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            self._close(*pair)
        return len(pairs)

    def close(self) -> None:
        self._server.close()
        self.drop()


@pytest.fixture
def school(prepared_bleu, tmp_path):
    """A class whose last submission takes some seconds."""
    made = Class(prepared_bleu, tmp_path / "course")
    made.fill()
    made.submit("slow", code="import time; time.sleep(3)")
    return made


def test_what_runs_when_the_connection_breaks_is_run_again(school, tmp_path):
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.add("a", threads=2)
        cluster.wait()
        proxy = Proxy(cluster.at.address)
        dropped = []

        def drop():
            wait_until(lambda: len(cluster.sandboxes()) >= 4)
            dropped.append(proxy.drop())

        dropping = threading.Thread(target=drop, daemon=True)
        dropping.start()
        records = school.grade(proxy.at)
        proxy.close()
    assert dropped and dropped[0] > 0
    states = {student: record.state for student, record in records.items()}
    assert states.pop("cut") == State.UNREADABLE
    assert set(states.values()) == {State.GRADED} and records["slow"].score == records["ada"].score
