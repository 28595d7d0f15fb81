"""One worker's part: what it refuses, the checks that it receives, and its warm fork servers."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from course_pkg import __version__
from course_pkg.grading import assignments as checks
from course_pkg.grading.classroom.cluster import messages, worker
from course_pkg.grading.classroom.cluster.messages import (
    Preparation,
    SubmissionTask,
    read_reply,
    read_request,
    reply_bytes,
    work_of,
)
from course_pkg.grading.classroom.execution.assignment import resolve
from course_pkg.grading.classroom.execution.run_gpus import NoGpu
from course_pkg.grading.classroom.execution.runner_output import RunLimits, RunResult, State
from course_pkg.grading.questions import registry
from course_pkg.sandbox.namespaces import SandboxFailed
from course_pkg.sandbox.probe import SandboxState
from tests.waiting import wait_until

LIMITS = RunLimits()
WORK = work_of(resolve("bleu"), LIMITS)


class Sandboxes:
    """Starts executors that run nothing; each submission raises `failure`, or waits for `hold`."""

    def __init__(self):
        self.made = []
        self.failure = self.hold = None
        self.without_gpu = ""

    def __call__(self, assignment, hidden, limits, jobs, gpu_jobs):
        self.made.append(Executor(self, (assignment.name, jobs, gpu_jobs)))
        return self.made[-1]


class Executor:
    def __init__(self, sandboxes, arguments):
        self.sandboxes = sandboxes
        self.arguments = arguments
        self.ended = self.stopped = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended = True

    def ready(self):
        self.thread = threading.current_thread()

    def room(self):
        return 2

    def without_gpu(self):
        return self.sandboxes.without_gpu

    def stop(self):
        self.stopped = True

    def run_submission(self, student, key, packed, called=()):
        if self.sandboxes.failure:
            raise self.sandboxes.failure
        if self.sandboxes.hold:
            self.sandboxes.hold.wait(300)
        return RunResult(reason=f"{student} {key!r} {packed!r}")


@pytest.fixture
def sandboxes():
    return Sandboxes()


@pytest.fixture
def warm(sandboxes, monkeypatch):
    """A worker's process without real sandboxes."""
    monkeypatch.setattr(checks, "__path__", list(checks.__path__))
    monkeypatch.delenv(registry.RECEIVED, raising=False)
    yield worker.WarmExecutor(sandboxes, lambda: SandboxState(True, ""))
    os.environ.pop(registry.RECEIVED, None)


def asked(warm, request, gpu=False):
    is_task = isinstance(request, SubmissionTask)
    data = messages.task_bytes(request) if is_task else messages.preparation_bytes(request)
    reply = warm.reply(read_request(data), gpu, 40, Path())
    return read_reply(reply_bytes(reply, LIMITS), LIMITS)


@pytest.fixture
def ask(warm):
    return partial(asked, warm)


def submission(student="ada", work=WORK):
    return SubmissionTask(work, student, b"key", b"packed")


@pytest.fixture
def hold(sandboxes):
    """Submissions run until this event."""
    sandboxes.hold = threading.Event()
    return sandboxes.hold


@pytest.fixture
def begin(ask):
    """A function that asks in a thread, and returns the future reply once a condition holds."""
    with ThreadPoolExecutor(4) as threads:

        def begin(work, condition):
            future = threads.submit(ask, submission(work=work))
            wait_until(condition)
            return future

        yield begin


def test_a_submission_is_run_with_its_own_key_on_warm_fork_servers(ask, sandboxes):
    assert ask(Preparation(WORK)).room == 2
    for student in ("ada", "ben"):
        assert ask(submission(student)).result.reason == f"{student} b'key' b'packed'"
    assert [one.arguments for one in sandboxes.made] == [("bleu", 32, 0)]
    assert sandboxes.made[0].thread.name.startswith("course-fork-servers")  # it lives on


def test_another_assignment_or_other_limits_replace_them(ask, sandboxes):
    ask(submission())
    ask(submission(work=work_of(resolve("rouge"), LIMITS)))
    ask(submission(work=replace(WORK, limits=RunLimits(time_limit_s=5))))
    ask(submission(work=replace(WORK, run="another run", limits=RunLimits(time_limit_s=5))))
    assert [one.ended for one in sandboxes.made] == [True, True, False]


def test_a_gpu_is_used_only_if_the_task_says_so(ask, sandboxes):
    ask(Preparation(WORK), gpu=True)
    assert sandboxes.made[0].arguments == ("bleu", 32, None)
    sandboxes.without_gpu = "no driver"
    reply = ask(Preparation(WORK), gpu=True)
    assert (reply.kind, reply.why) == ("no-gpu", "no driver")
    assert ask(Preparation(WORK)).kind == "fit"


def test_two_runs_take_turns_and_none_waits_for_the_end_of_the_other(warm, sandboxes, hold, begin):
    first = begin(WORK, lambda: warm._users == 1)
    second = begin(work_of(resolve("rouge"), LIMITS), lambda: len(warm._waiting) == 1)
    third = begin(WORK, lambda: len(warm._waiting) == 2)  # it could run now, but for the second
    assert warm._users == 1
    hold.set()
    assert [one.result().kind for one in (first, second, third)] == ["result"] * 3
    assert not warm._waiting
    assert [one.arguments[0] for one in sandboxes.made] == ["bleu", "rouge", "bleu"]


@pytest.mark.parametrize(
    ("failure", "kind", "said"),
    [
        (NoGpu("the GPU is gone"), "no-gpu", "the GPU is gone"),
        (SandboxFailed("the fork server has ended"), "failed", "the fork server has ended"),
        (ValueError("a bug\x1b"), "failed", "ValueError: a bug"),
    ],
)
def test_a_failure_is_a_reply(ask, sandboxes, failure, kind, said):
    sandboxes.failure = failure
    reply = ask(submission())
    assert reply.kind == kind and said in reply.why


def test_fork_servers_that_failed_are_replaced(ask, sandboxes):
    sandboxes.failure = SandboxFailed("the fork server has ended")
    ask(submission())
    sandboxes.failure = None
    assert ask(submission()).result.state == State.GRADED
    assert [one.ended for one in sandboxes.made] == [True, False]


def test_another_version_of_the_package_or_of_the_checks_is_refused(ask, sandboxes):
    reply = ask(submission(work=replace(WORK, judging="0" * 64, version="course_pkg 9")))
    assert reply.kind == "unfit" and "expected course_pkg 9" in reply.why
    assert reply.why.startswith(f"it has course_pkg {__version__} (code ")
    reply = ask(submission(work=replace(WORK, checks="0" * 64)))
    assert reply.kind == "unfit" and "another version of the checks of bleu" in reply.why
    reply = ask(submission(work=replace(WORK, checks="")))  # a plain assignment of that name
    assert reply.kind == "unfit" and not sandboxes.made


def test_a_worker_without_a_sandbox_is_refused(sandboxes):
    warm = worker.WarmExecutor(sandboxes, lambda: SandboxState(False, "no bwrap", "install it"))
    assert asked(warm, Preparation(WORK)).why == "no bwrap; install it"


def test_checks_that_the_package_lacks_are_received_once_and_checked(ask, monkeypatch, tmp_path):
    files = {name: data.decode() for name, data in registry.assignment_files("bleu").items()}
    monkeypatch.setattr(registry, "ASSIGNMENTS", tmp_path)
    assert ask(submission()).kind == ask(Preparation(WORK)).kind == "lacks"
    for other in ({**files, "more.py": "evil = 1"}, {"more.py": ""}):
        reply = ask(Preparation(WORK, other))
        assert reply.kind == "unfit" and "differ from those sent" in reply.why
    reply = ask(Preparation(WORK, {**files, "../../outside.py": "evil"}))
    assert reply.kind == "unfit" and "leaves the folder" in reply.why
    assert ask(Preparation(WORK, files)).kind == "fit"
    assert ask(submission()).result.state == State.GRADED
    assert resolve("bleu").hash == WORK.checks
    assert checks.__path__[1] == os.environ[registry.RECEIVED]


def test_only_a_run_that_has_the_worker_for_itself_is_stopped(warm, sandboxes, hold, begin, ask):
    one = begin(replace(WORK, run="one"), lambda: warm._users == 1)
    warm.stop("three")
    assert not sandboxes.made[0].stopped
    two = begin(replace(WORK, run="two"), lambda: warm._users == 2)
    warm.stop("one")
    assert not sandboxes.made[0].stopped
    hold.set()
    assert one.result().kind == two.result().kind == "result"
    hold.clear()
    alone = begin(WORK, lambda: warm._users == 1)
    warm.stop(WORK.run)
    hold.set()
    alone.result()
    assert sandboxes.made[0].stopped
    ask(submission(work=replace(WORK, run="another run")))
    assert [one.ended for one in sandboxes.made] == [True, False]


def test_what_waits_on_a_worker_does_not_run_if_its_run_is_stopped(warm, sandboxes, hold, begin):
    first = begin(WORK, lambda: warm._users == 1)
    rouge = replace(work_of(resolve("rouge"), LIMITS), run="two")
    second = begin(rouge, lambda: len(warm._waiting) == 1)
    warm.stop("two")
    reply = second.result(300)
    assert (reply.kind, reply.why) == ("failed", "SandboxFailed: the run was interrupted")
    hold.set()
    first.result()
    assert [one.arguments[0] for one in sandboxes.made] == ["bleu"]


def test_a_package_that_was_changed_under_a_running_worker_is_refused(ask, monkeypatch):
    assert ask(Preparation(WORK)).kind == "fit"
    monkeypatch.setattr(worker, "current_judging_hash", lambda: "0" * 64)
    assert ask(submission()).kind == "result"  # by the processes that it has
    reply = ask(submission(work=replace(WORK, limits=RunLimits(time_limit_s=5))))
    assert reply.kind == "unfit" and "has changed since it was started: start" in reply.why
