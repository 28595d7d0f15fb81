"""Grade on a cluster while its parts are killed: a worker, the scheduler, the command itself."""

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from course_pkg.classroom.results.record import State
from course_pkg.cli.exits import FAILED, NEEDS_A_LOOK
from tests.classroom.clusters import Cluster, certificate

from .course import BUSY, TRIES, Course, StepFailed

READ_AGAIN = {State.REFUSED, State.UNREADABLE}  # nothing is run for them, so every run reads them
STOP_S = 30.0  # for a worker to end when it is told to

Event = tuple[int, Callable[[subprocess.Popen[str]], object]]


def graded(line: str) -> str | None:
    """The student whom a line of the command's output reports as graded in this run.

    >>> graded("ada  graded  24/24  2.3 s"), graded("ben  graded  4/24  before")
    ('ada', None)
    """
    student, *words = line.rstrip().split("  ")
    ran = len(words) > 2 and words[0] in set(State) - READ_AGAIN
    return student if ran and words[2] != "before" else None


class Crashes:
    """Runs of the command on clusters of this machine, which are broken off and started again.

    counts: how often each student was graded. changed: students whose record a later run wrote
    again. killed: what was killed, and when. pids: of the workers.
    """

    def __init__(self, course: Course, folder: Path, workers: int, submissions: int) -> None:
        self.course, self._folder, self._workers = course, folder, workers
        self._moments = [max(n, submissions * n // 5) for n in (1, 2, 3)]  # submissions graded
        self.counts: Counter[str] = Counter()
        self.changed: set[str] = set()
        self.killed: list[str] = []
        self.pids: list[int] = []
        self._clusters: list[Cluster] = []

    def __enter__(self) -> "Crashes":
        """Start both clusters, the second one with TLS: that takes some seconds."""
        self._start("first", None)
        self._start("second", certificate(self._folder, "term"))
        return self

    def __exit__(self, *_: object) -> None:
        while self._clusters:
            self._end()

    @property
    def _cluster(self) -> Cluster:
        return self._clusters[0]

    def grade(self) -> None:
        """Grade everybody, with three crashes on the way. Raises StepFailed."""
        one, two, three = self._moments
        self._run(FAILED, (one, self._kill_a_worker), (two, self._kill_the_scheduler))
        self._end()
        self._run(-signal.SIGKILL, (three, self._kill_the_command))
        self._run(NEEDS_A_LOOK)

    def again(self, *options: str) -> set[str]:
        """Run the command once more on the cluster; whom it graded."""
        said = self.course.grade(*self._address(), *options)
        return {student for line in said.splitlines() if (student := graded(line))}

    def _run(self, code: int, *events: Event, tries: int = TRIES) -> None:
        """Run the command; call each event's function after so many have their grade.

        As it says itself, it is run again if the machine was too busy to start the workers.
        """
        before, left, said = self.course.records(), list(events), []
        process = self.course.grading(*self._address())
        for line in process.stdout:
            said.append(line)
            if student := graded(line):
                self.counts[student] += 1
                while left and self.counts.total() >= left[0][0]:
                    left.pop(0)[1](process)
        if process.wait() == FAILED and tries > 1 and f"{BUSY}); run" in said[-1]:
            self._run(code, *left, tries=tries - 1)
        elif process.returncode != code or left:
            what = f"exit code {process.returncode}, {len(left)} crashes too few; expected {code}"
            raise StepFailed(f"course grade --scheduler: {what}\n{''.join(said)[-3000:]}")
        after = self.course.records()
        self.changed |= {s for s, text in before.items() if _kept(text) and after.get(s) != text}

    def _start(self, name: str, pem: Path | None) -> None:
        made = Cluster(self._folder / name, pem, preload=None)
        self._clusters.append(made)
        self._add(made, *(f"{name}-{number + 1}" for number in range(self._workers)))

    def _add(self, cluster: Cluster, *names: str) -> None:
        cluster.add(*names)
        self.pids += [cluster.workers[name].pid for name in names]

    def _end(self) -> None:
        """Tell the workers of the first cluster to end, then kill what is left of it."""
        for process in self._cluster.workers.values():
            process.terminate()
        until = time.monotonic() + STOP_S
        while self._cluster.alive() and time.monotonic() < until:
            time.sleep(0.1)
        self._clusters.pop(0).__exit__()

    def _address(self) -> tuple[str, ...]:
        at, pem = self._cluster.at, self._folder / "term.pem"
        tls = ("--tls-ca", str(pem), "--tls-cert", str(pem)) if at.ca else ()
        return ("--scheduler", at.address, *tls)

    def _kill_a_worker(self, process: subprocess.Popen[str]) -> None:
        """Kill a worker that runs a submission, and start another one."""
        while not (busy := [name for name in self._cluster.alive() if self._is_busy(name)]):
            if process.poll() is not None:
                raise StepFailed("the command ended before it had graded everybody")
            time.sleep(0.05)
        self._note(f"worker {busy[0]}")
        self._cluster.kill(busy[0])
        self._add(self._cluster, f"{busy[0]}-again")

    def _is_busy(self, name: str) -> bool:
        children = psutil.Process(self._cluster.workers[name].pid).children(recursive=True)
        return any(child.name() == "bwrap" for child in children)

    def _kill_the_scheduler(self, _: object) -> None:
        self._note("the scheduler")
        self._cluster.scheduler.kill()

    def _kill_the_command(self, process: subprocess.Popen[str]) -> None:
        self._note("the command")
        process.kill()

    def _note(self, what: str) -> None:
        self.killed.append(f"{what} after {self.counts.total()}")


def _kept(record: bytes) -> bool:
    """Whether no later run should write this record again."""
    return json.loads(record)["record"]["state"] not in READ_AGAIN
