"""This machine's executor: what is the grader's fault is no student's; and a run that gets room."""

from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from nbformat.v4 import new_code_cell

from course_pkg.grading.classroom.execution.assignment import resolve
from course_pkg.grading.classroom.execution.local_executor import LocalExecutor, pack
from course_pkg.grading.classroom.execution.runner_output import NoSandbox, RunLimits, RunResult
from course_pkg.sandbox.enter import PR_SET_CHILD_SUBREAPER, libc
from course_pkg.sandbox.namespaces import SandboxFailed
from tests.exercises.assignments import EXERCISES, notebook
from tests.grading.classroom import NEEDS_SANDBOX
from tests.waiting import wait_until

ASSIGNMENT = "bleu"


@pytest.fixture
def collected():
    """Orphans go to the system's first process; another test's `Watch` may have changed that."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.mark.slow
@NEEDS_SANDBOX
def test_a_fork_server_that_is_killed_is_not_the_students_fault(tmp_path, collected):
    nb = notebook(EXERCISES, ASSIGNMENT)
    nb.cells.insert(0, new_code_cell("import time; time.sleep(500)", id="own"))
    with (
        LocalExecutor(resolve(ASSIGNMENT), tmp_path, RunLimits(), 1, 0) as here,
        ThreadPoolExecutor(1) as p,
    ):
        here.ready()
        future = p.submit(here.run_submission, "ada", b"key", pack(nb, {}))
        server = psutil.Process(here._servers[0]._process.pid)
        wait_until(lambda: here._running and server.children(), 120)
        server.kill()
        with pytest.raises(SandboxFailed, match="the fork server has ended"):
            future.result(120)


def test_a_trial_whose_checker_writes_nothing_stops_the_run(tmp_path, monkeypatch):
    here = LocalExecutor(resolve(ASSIGNMENT), tmp_path, RunLimits(), 1, 0)
    monkeypatch.setattr(here, "run_submission", lambda *_: RunResult(no_verdicts="it is too slow"))
    with pytest.raises(NoSandbox, match="its checker wrote no results: it is too slow"):
        here.ready()
    monkeypatch.setattr(here, "run_submission", lambda *_: RunResult(verdicts=b"[]"))
    here.ready()
