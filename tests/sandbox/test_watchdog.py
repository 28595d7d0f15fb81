"""The watchdog: it tells apart whose fault a lack of memory is, and leaves nothing behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from course_pkg.sandbox import watchdog
from course_pkg.sandbox.limits import MIB
from course_pkg.sandbox.probe import find_bubblewrap
from tests.sandbox.conftest import needs_sandbox
from tests.waiting import wait_until


@pytest.fixture
def sandbox():
    """A sandbox with a program that takes 40 MiB when it reads a byte; `init`: its process id."""
    info, info_write = os.pipe()
    data = os.memfd_create("data")
    program = "import os, time; print('up', flush=True); os.read(0, 1)\n"
    program += "x = b'x' * (40 << 20); time.sleep(600)"
    line = [str(find_bubblewrap()), "--info-fd", str(info_write), "--unshare-pid"]
    line += ["--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    # A file in bubblewrap's own tmpfs, and a tmpfs that another one covers.
    line += ["--ro-bind-data", str(data), "/etc/hostname", "--tmpfs", "/srv", "--tmpfs", "/srv"]
    line += ["--unshare-user"] if os.getuid() else []
    process = subprocess.Popen(
        [*line, sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[info_write, data],
    )
    os.close(info_write)
    os.close(data)
    process.stdout.readline()
    process.init = json.loads(os.read(info, 4096))["child-pid"]
    os.close(info)
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


@needs_sandbox
@pytest.mark.parametrize("grows", [True, False])
def test_a_growing_sandbox_is_killed_first_and_any_if_the_machine_stays_out_of_memory(
    sandbox, monkeypatch, grows
):
    monkeypatch.setattr(watchdog, "FLOOR", 2.0)  # more than the machine has: always short of memory
    if grows:
        monkeypatch.setattr(watchdog, "SHORT_LIMIT", 10**9)
        monkeypatch.setattr(watchdog, "SHARE", 10**4)  # it may grow slowly on a busy machine
    enforcer = watchdog.Watchdog(300 * MIB, 50)
    enforcer.watch(sandbox.init)
    if grows:
        # It grows only after the first measurement, which growth is compared with.
        wait_until(lambda: enforcer.peak_bytes() is not None, 120)
        assert sandbox.poll() is None
        sandbox.stdin.write(b"x")
        sandbox.stdin.flush()
    sandbox.wait(timeout=120)
    assert enforcer.killed_within_limits() and not enforcer.out_of_memory()
    enforcer.close()


@needs_sandbox
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watchdog_that_cannot_measure_kills_the_sandbox(sandbox, monkeypatch):
    enforcer = watchdog.Watchdog(300 * MIB, 50)

    def fail(exact):
        raise PermissionError("no measurement")

    monkeypatch.setattr(enforcer, "_measure", fail)
    enforcer.watch(sandbox.init)
    sandbox.wait(timeout=120)
    enforcer.close()
    assert enforcer.killed_within_limits() and not enforcer.out_of_memory()


@needs_sandbox
def test_killing_waits_until_all_is_gone_and_closing_closes_all_descriptors(sandbox):
    before = set(os.listdir("/proc/self/fd"))
    enforcer = watchdog.Watchdog(300 * MIB, 50)
    other = subprocess.Popen(["sleep", "600"])
    enforcer.watch(sandbox.init, other.pid)
    enforcer.kill()
    assert other.wait(timeout=120) == -signal.SIGKILL
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # gone by now
        state = Path(f"/proc/{sandbox.init}/stat").read_text().rpartition(")")[2].split()[0]
        assert state in "ZX"  # dead: bubblewrap has not waited for it yet
    enforcer.close()
    enforcer.close()
    assert set(os.listdir("/proc/self/fd")) <= before
    assert not enforcer.out_of_memory() and not enforcer.killed_within_limits()


@needs_sandbox
def test_files_count_also_when_they_are_empty(sandbox):
    enforcer = watchdog.Watchdog(80 * MIB, 50)
    enforcer.watch(sandbox.init)
    folder = os.open(f"/proc/{sandbox.init}/root/srv", os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # the sandbox is gone
            for number in range(200_000):
                if enforcer.out_of_memory():
                    break
                os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY, dir_fd=folder))
        wait_until(enforcer.out_of_memory)
    finally:
        os.close(folder)
        enforcer.close()


@needs_sandbox
def test_a_program_that_has_ended_before_it_is_watched_is_no_error(sandbox):
    ended = subprocess.Popen(["true"])
    ended.wait()
    enforcer = watchdog.Watchdog(300 * MIB, 50)
    enforcer.watch(sandbox.init, ended.pid)
    enforcer.kill()
    sandbox.wait(timeout=120)
    enforcer.close()
    assert not enforcer.killed_within_limits()


@needs_sandbox
def test_a_sandbox_that_has_ended_cannot_be_watched(sandbox):
    before = set(os.listdir("/proc/self/fd"))
    ended = subprocess.Popen(["true"])
    ended.wait()
    enforcer = watchdog.Watchdog(300 * MIB, 50)
    with pytest.raises(ProcessLookupError):
        enforcer.watch(ended.pid, sandbox.init)
    enforcer.close()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_process_outside_a_sandbox_is_refused():
    enforcer = watchdog.Watchdog(300 * MIB, 50)
    with pytest.raises(ValueError, match="not in a sandbox"):
        enforcer.watch(os.getpid())
    enforcer.close()
