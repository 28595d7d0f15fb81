"""`course grade` interrupted by Ctrl-C or a signal, or killed: it ends and leaves nothing."""

import signal

import psutil
import pytest

from tests.grading.classroom import NEEDS_SANDBOX
from tests.grading.classroom.host import groups, is_running
from tests.grading.classroom.school import School
from tests.waiting import wait_until

ASSIGNMENT = "lora-math"
LOOPS_S = 5.0  # of processor time: a kernel that starts needs less
pytestmark = [pytest.mark.slow, NEEDS_SANDBOX]


def descendants(pid: int) -> set[psutil.Process]:
    return set(psutil.Process(pid).children(recursive=True))


def busy(pid: int) -> list[psutil.Process]:
    """The descendants whose code loops: each of two submissions has two such processes."""
    return [one for one in descendants(pid) if used_s(one) > LOOPS_S]


def used_s(process: psutil.Process) -> float:
    try:
        return process.cpu_times().user
    except psutil.NoSuchProcess:
        return 0.0


def wait_until_gone(processes: set[psutil.Process]) -> None:
    wait_until(
        lambda: not any(map(is_running, processes)),
        shows=lambda: list(filter(is_running, processes)),
    )


@pytest.fixture
def running(tmp_path):
    """A run of `course grade` in the middle of two endless submissions, and its descendants."""
    course = School(tmp_path, ASSIGNMENT)
    for student in ("ada", "ben"):
        course.submit(student, 0.0, "import os\nos.fork()\nwhile True: pass")
    process = course.start("grade", ASSIGNMENT, "--jobs", "2")
    try:
        wait_until(lambda: process.poll() is not None or len(busy(process.pid)) >= 4)
        assert process.poll() is None, process.stdout.read()
        yield process, descendants(process.pid)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)]
)
def test_an_interrupted_run_ends_and_says_how_to_continue(running, number):
    process, children = running
    process.send_signal(number)
    code = process.wait(600)
    said = process.stdout.read()
    assert (code, "run the same command again to continue" in said) == (130, True), said
    wait_until_gone(children)
    assert not groups(process.pid)


@pytest.mark.exhaustive
def test_a_killed_run_leaves_no_process(running):
    process, children = running
    process.kill()
    process.wait()
    wait_until_gone(children)
