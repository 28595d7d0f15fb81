"""`course grade` interrupted by Ctrl-C or a signal, or killed: it ends and leaves nothing."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.classroom import NEEDS_SANDBOX
from tests.classroom.host import groups, is_running
from tests.classroom.school import School
from tests.exercises.assignments import ROOT

ASSIGNMENT = "lora-math"
pytestmark = [pytest.mark.slow, NEEDS_SANDBOX]


def descendants(pid: int) -> set[psutil.Process]:
    """Every child of `pid`, and their children."""
    return set(psutil.Process(pid).children(recursive=True))


def running_after(seconds: float, processes: set[psutil.Process]) -> set[psutil.Process]:
    """The processes that still run after so many seconds; returns as soon as none does."""
    until = time.monotonic() + seconds
    while True:
        found = {process for process in processes if is_running(process)}
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.1)


@pytest.fixture
def running(tmp_path):
    """A run of `course grade` in the middle of two endless submissions, and its descendants."""
    course = School(tmp_path, ASSIGNMENT)
    for student in ("ada", "ben"):
        course.submit(student, 0.0, "import os\nos.fork()\nwhile True: pass")
    process = subprocess.Popen(
        [sys.executable, "-m", "course_pkg", "grade", ASSIGNMENT, "--jobs", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Tests that run in the background inherit an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        until = time.monotonic() + 120
        before = set()
        found = descendants(process.pid)
        while len(found) < 2 + 2 * 8 or found != before:  # all are there, and none is starting
            assert process.poll() is None and time.monotonic() < until, process.stdout.read()
            time.sleep(0.3)
            before, found = found, descendants(process.pid)
        yield process, found
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)]
)
def test_an_interrupted_run_ends_and_says_how_to_continue(running, number):
    process, found = running
    process.send_signal(number)
    code = process.wait(60)
    said = process.stdout.read()
    assert (code, "run the same command again to continue" in said) == (130, True), said
    assert running_after(60, found) == set()
    assert not groups(process.pid)


@pytest.mark.exhaustive
def test_a_killed_run_leaves_no_process(running):
    process, found = running
    process.kill()
    process.wait()
    assert running_after(60, found) == set()
