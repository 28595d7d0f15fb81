"""The fork server: it reports failures, does not confuse its answers, and ends with its client."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from course_pkg.sandbox import policy
from course_pkg.sandbox.fork_process import end_with
from course_pkg.sandbox.fork_server import MAX_MESSAGE, ForkServer, why_not_started
from course_pkg.sandbox.namespaces import SandboxFailed
from tests.sandbox.conftest import ENVIRONMENT, LIMITS, ROOT, TARGET, needs_sandbox
from tests.waiting import wait_until

NO_SANDBOX = {"pidfd": None, "join": [], "uid": None, "limits": LIMITS}


def answer(server: ForkServer, code: str) -> object:
    server.ready()
    out, into = os.pipe()
    with os.fdopen(out) as answers:
        server.fork({"code": code}, [into], **NO_SANDBOX)
        os.close(into)
        return json.loads(answers.read())


def test_a_forked_server_has_the_firsts_modules_and_its_own_and_children_of_its_own():
    code = "import sys\nresult = [name in sys.modules for name in ('random', 'wave')]"
    with (
        ForkServer(TARGET, ["random"], ENVIRONMENT) as first,
        ForkServer(TARGET, ["wave"], forked_by=first) as second,
    ):
        assert answer(first, code) == [True, False]
        assert answer(second, code) == [True, True]
        assert answer(first, code) == [True, False]


def test_a_server_calls_what_its_preload_says_and_its_children_collect_garbage():
    code = """
import gc, logging
result = ["prepared" in logging.root.manager.loggerDict, gc.isenabled()]
result.append(gc.get_freeze_count() > 1000)
"""
    with ForkServer(TARGET, ["logging:getLogger:prepared"], ENVIRONMENT) as server:
        assert answer(server, code) == [True, True, True]


def test_a_server_that_cannot_import_its_target_says_what_is_missing():
    with (
        ForkServer("no.such.module:run", (), ENVIRONMENT) as server,
        pytest.raises(SandboxFailed, match=r"No module named .no. \(the package no is"),
    ):
        server.ready()


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (TARGET, "no.such.module:run", r"No module named .no. \(the package"),
        ("no.such.module:run", TARGET, r"No module named .no. \(the package"),
        (TARGET, "tests.sandbox.kills_itself:run", "it was killed"),
    ],
)
def test_a_forked_server_that_does_not_start_says_why(first, second, says):
    with (
        ForkServer(first, (), ENVIRONMENT) as first_server,
        ForkServer(second, (), forked_by=first_server) as server,
        pytest.raises(SandboxFailed, match=says),
    ):
        server.ready()


def test_a_forked_server_ends_with_the_first_and_both_say_whether_they_are_alive():
    with ForkServer(TARGET, (), ENVIRONMENT) as first:
        with ForkServer(TARGET, (), forked_by=first) as second:
            second.ready()
            assert first.alive() and second.alive()
            first._process.kill()
            assert second._socket.recv(10) == b""
            wait_until(lambda: not first.alive() and not second.alive())
        assert not second.alive()
        with (
            ForkServer(TARGET, (), forked_by=first) as third,
            pytest.raises(SandboxFailed, match="it was killed"),
        ):
            third.ready()


NOT_STARTED = [  # exit code, errors, and what is said
    (None, "", "had not imported its modules after 120 s"),
    (-9, "", "it was killed (most often because"),
    (-11, "", "it ended with signal 11 and said nothing (run `course doctor`)"),
    (1, "MemoryError", "MemoryError (it got no more memory: `ulimit -v`"),
    (1, "OSError: [Errno 28] No space left on device", "the disk is full: free some space"),
    (1, "OSError: [Errno 24] Too many open files: 'x'", "raise `ulimit -n`"),
    (1, "RuntimeError: can't start new thread", "it could start no more processes"),
    (1, "ImportError: libcuda.so: cannot open shared object file", "run `make distclean`"),
    (1, "PermissionError: [Errno 13] Permission denied: '/x'", "does not permit something"),
    (1, 'Traceback:\n  File "a.py"\n    x()\nValueError: 3', "ValueError: 3 (run `course d"),
]


def test_a_process_that_was_forked_while_its_parent_ended_ends_too():
    """Else it holds the server's socket, and who waits for an answer waits until the time limit."""
    ends = []
    for parent in (os.getpid(), 1):
        if (child := os.fork()) == 0:
            end_with(parent)
            os._exit(0)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert ends == [0, 1]


def test_every_reason_not_to_start_comes_with_what_to_do():
    said = [(why_not_started(code, errors, 120), says) for code, errors, says in NOT_STARTED]
    assert [(text, says) for text, says in said if says not in text] == []


@needs_sandbox
def test_a_child_that_fails_writes_the_reason_to_its_first_descriptor(inside):
    assert inside("raise ValueError('wrong')") == {"failed": "ValueError: wrong"}


def test_a_child_without_a_sandbox_gets_its_descriptors_and_nothing_else(server):
    code = """
import os
here = os.listdir("/proc/self/fd")
found = sorted(int(fd) for fd in here if os.path.exists(f"/proc/self/fd/{fd}"))
result = [[fd for fd in found if fd > 2] == descriptors, os.getsid(0) == os.getpid()]
"""
    assert answer(server, code) == [True, True]


def test_a_late_answer_is_not_mistaken_for_the_next_one():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(0.05)
    server = ForkServer.__new__(ForkServer)
    server._socket = ours
    server._lock = threading.Lock()
    server._requests = 0
    with ours, theirs:
        with pytest.raises(SandboxFailed, match="does not answer"):
            server.fork({}, [0], **NO_SANDBOX)
        theirs.send(b"1 111")
        theirs.send(b"2 222")
        assert server.fork({}, [0], **NO_SANDBOX) == 222
        theirs.close()
        with pytest.raises(SandboxFailed, match="has ended"):  # nobody is there to be sent to
            server.fork({}, [0], **NO_SANDBOX)


def test_a_job_that_is_too_large_is_refused_before_it_is_sent(server):
    with pytest.raises(ValueError, match=f"at most {MAX_MESSAGE:,}"):
        server.fork({"code": "x" * MAX_MESSAGE}, [], **NO_SANDBOX)


def test_a_server_ends_when_its_client_closes_the_socket():
    with ForkServer(TARGET, (), ENVIRONMENT) as server:
        server.ready()
        server._socket.close()
        assert server._process.wait(120) == 0


VIEW = policy.View(policy.python_folders(), writable={"/tmp": 2**20})
ORPHAN = """
import ctypes, os, signal
from course_pkg.sandbox.fork_server import ForkServer
from course_pkg.sandbox.process import SandboxedProcess
from tests.sandbox.conftest import ENVIRONMENT, LIMITS, TARGET, UID
from tests.sandbox.test_fork_server import VIEW

ctypes.CDLL(None).prctl(36, 1)  # orphans become this process's children, and it collects none
out, into = os.pipe()
with ForkServer(TARGET, (), ENVIRONMENT) as server:
    server.ready()
    with SandboxedProcess(VIEW, UID, LIMITS, "orphan") as process:
        code = "os.write(descriptors[0], b'x'); import time; time.sleep(1000)"
        process.start(server, {"code": "import os; " + code}, [into])
        assert os.read(out, 1) == b"x"
        os.kill(process._pid, signal.SIGKILL)  # the parent, outside the namespace, of what runs
    print("gone")
"""


@needs_sandbox
def test_a_sandbox_ends_though_nobody_collects_its_orphans():
    done = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert done.communicate(timeout=300)[0] == b"gone\n"
    finally:
        if done.poll() is None:
            os.killpg(done.pid, signal.SIGKILL)
