"""A sandbox from outside: built or a clear error, ended with everything in it, nothing left."""

import os
import resource
import socket
import threading

import pytest

from course_pkg.sandbox import policy
from course_pkg.sandbox.pen import Pen
from course_pkg.sandbox.policy import View, walls
from course_pkg.sandbox.probe import probe
from course_pkg.sandbox.waiting import readable
from course_pkg.sandbox.walls import SandboxFailed, Walls
from course_pkg.sandbox.warm import WarmParent

from .conftest import LIMITS, UID

pytestmark = pytest.mark.skipif(not probe().ok, reason=f"no sandbox here: {probe().detail}")


def namespaces(pid: int) -> dict[str, str]:
    return {name: os.readlink(f"/proc/{pid}/ns/{name}") for name in ("mnt", "pid", "net", "ipc")}


def test_two_sandboxes_share_no_namespace_with_each_other_or_with_us():
    with Walls(walls(View(()), UID)) as one, Walls(walls(View(()), UID)) as two:
        found = [namespaces(one.init), namespaces(two.init), namespaces(os.getpid())]
        for name in found[0]:
            assert len({spaces[name] for spaces in found}) == 3, name


def test_closing_ends_what_is_inside_and_may_be_done_twice():
    sandbox = Walls(walls(View(()), UID))
    init = sandbox.init
    sandbox.close()
    sandbox.close()
    assert not os.path.exists(f"/proc/{init}")


def test_a_sandbox_that_cant_be_built_says_why(tmp_path):
    with pytest.raises(SandboxFailed, match="nowhere"):
        Walls(walls(View((tmp_path / "nowhere",)), UID))


def test_a_child_is_gone_when_its_pen_is_left_even_if_it_ignores_signals(parent):
    code = """
import os, signal, time
for number in range(1, 32):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
if os.fork() == 0:
    os.setsid()
os.write(descriptors[0], b"x")
time.sleep(1000)
"""
    out, into = os.pipe()
    with os.fdopen(out, "rb", 0) as told:
        with Pen(View(policy.python_folders()), UID, LIMITS, "test") as pen:
            pen.put(parent, {"code": code}, [into])
            os.close(into)
            assert told.read(1) and told.read(1)
            spaces = namespaces(pen.walls.init)["pid"]
        left = [pid for pid in os.listdir("/proc") if pid.isdigit() and _pid_space(pid) == spaces]
        assert left == []


def _pid_space(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def test_a_warm_parent_that_cant_import_says_what_was_missing():
    env = policy.environment({"PYTHONPATH": os.getcwd()})
    with (
        WarmParent("no.such.module:run", (), env) as warm,
        pytest.raises(SandboxFailed, match="No module named 'no'"),
    ):
        warm.ready()


def test_a_child_that_fails_says_why_on_its_first_descriptor(inside):
    assert inside("raise ValueError('wrong')") == {"failed": "ValueError: wrong"}


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(0.05)
    warm = WarmParent.__new__(WarmParent)
    warm._socket, warm._lock, warm._asked = ours, threading.Lock(), 0
    options = {"pidfd": None, "fence": [], "uid": None, "limits": LIMITS}
    with ours, theirs:
        with pytest.raises(SandboxFailed, match="does not answer"):
            warm.fork({}, [0], **options)
        theirs.send(b"1 111")
        theirs.send(b"2 222")
        assert warm.fork({}, [0], **options) == 222


def test_a_descriptor_of_any_number_can_be_waited_for():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most[1] < 2000:
        pytest.skip(f"at most {most[1]} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2000, most[1]))
    end, other = os.pipe()
    try:
        high = os.dup2(end, 1500)
        assert not readable(high, 0.01)
        os.write(other, b"x")
        assert readable(high, 0.01)
        os.close(high)
    finally:
        os.close(end)
        os.close(other)
        resource.setrlimit(resource.RLIMIT_NOFILE, most)


def test_a_warm_parent_ends_with_the_one_that_started_it():
    env = policy.environment({"PYTHONPATH": os.getcwd()})
    with WarmParent("tests.sandbox.inside:run", (), env) as warm:
        warm.ready()
        warm._socket.close()
        assert warm._process.wait(10) == 0
