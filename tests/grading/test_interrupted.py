"""`course grade` broken off by Ctrl-C or a signal, or killed: it ends at once, nothing is left."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell

from course_pkg.sandbox.probe import probe
from tests.exercises.assignments import EXERCISES, ROOT, notebook

from .host import groups
from .test_grader import ASSIGNMENT, Class

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not probe().ok, reason=f"no sandbox here: {probe().detail}"),
]


def descendants(pid: int) -> set[int]:
    """Every process that `pid` has started, and those have started."""
    children = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that ended meanwhile
            children.update(map(int, path.read_text().split()))
    return children.union(*map(descendants, children))


def alive(pids: set[int], within: float) -> set[int]:
    """Those that still run after so many seconds, which are waited only while one does."""
    until = time.monotonic() + within
    while True:
        found = {pid for pid in pids if Path(f"/proc/{pid}/exe").exists()}
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.1)


@pytest.fixture
def running(tmp_path):
    """A run of `course grade` that is in the middle of two endless hand-ins; its descendants."""
    course = Class(tmp_path)
    for student in ("ada", "ben"):
        nb = notebook(EXERCISES, ASSIGNMENT)
        nb.cells.insert(0, new_code_cell("import os\nos.fork()\nwhile True: pass"))
        course.hand_in(student, nb)
    process = subprocess.Popen(
        [sys.executable, "-m", "course_pkg", "grade", ASSIGNMENT, "--jobs", "2"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + 120
        while len(found := descendants(process.pid)) < 2 + 2 * 8:
            assert process.poll() is None and time.monotonic() < until, process.stdout.read()
            time.sleep(0.1)
        yield process, found
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_within_seconds_and_says_that_it_can_go_on(running, number):
    process, found = running
    process.send_signal(number)
    code, said = process.wait(15), process.stdout.read()
    assert (code, "goes on where this one stopped" in said) == (130, True), said
    assert alive(found, within=1) == set()  # the kernel is still putting the last away
    assert not groups(process.pid)


def test_killed_it_takes_all_its_processes_with_it(running):
    process, found = running
    process.kill()
    process.wait()
    assert alive(found, within=10) == set()
