"""Namespaces seen from outside: created or a clear error, and nothing left when they end."""

import os
import resource

import pytest

from course_pkg.sandbox import policy
from course_pkg.sandbox.namespaces import Namespaces, SandboxFailed
from course_pkg.sandbox.policy import View, bubblewrap_command
from course_pkg.sandbox.process import SandboxedProcess
from course_pkg.sandbox.waiting import readable
from tests.sandbox.conftest import LIMITS, UID, needs_sandbox

pytestmark = needs_sandbox


def namespaces(pid: int | str) -> dict[str, str]:
    """The namespaces of a process; none if it is gone or not ours to see."""
    try:
        return {
            kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("mnt", "pid", "net", "ipc")
        }
    except OSError:
        return {}


def new_sandbox(view: View) -> Namespaces:
    return Namespaces(bubblewrap_command(view, UID))


def test_two_sandboxes_share_no_namespace_with_each_other_or_with_us():
    with new_sandbox(View(())) as one, new_sandbox(View(())) as two:
        all_spaces = [namespaces(one.init), namespaces(two.init), namespaces(os.getpid())]
        for name in all_spaces[0]:
            assert len({spaces[name] for spaces in all_spaces}) == 3, name


def test_closing_kills_the_first_process_and_may_be_repeated():
    sandbox = new_sandbox(View(()))
    sandbox.close()
    sandbox.close()
    assert not os.path.exists(f"/proc/{sandbox.init}")


def test_a_sandbox_that_cannot_be_created_says_why(tmp_path):
    with pytest.raises(SandboxFailed, match="nowhere"):
        new_sandbox(View((tmp_path / "nowhere",)))


def test_no_process_is_left_after_a_sandbox_even_if_it_ignores_signals(server):
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
    with os.fdopen(out, "rb", 0) as started:
        view = View(policy.python_folders())
        with SandboxedProcess(view, UID, LIMITS, "test") as process:
            process.start(server, {"code": code}, [into])
            os.close(into)
            assert started.read(1) and started.read(1)
            pid_namespace = namespaces(process.namespaces.init)["pid"]
        pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
        assert [pid for pid in pids if namespaces(pid).get("pid") == pid_namespace] == []


def test_readable_accepts_descriptors_above_1023():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip(f"at most {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
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
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
