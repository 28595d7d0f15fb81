"""Resource limits: real programs that exceed them in real sandboxes, with each kind of enforcer."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from course_pkg.sandbox import cgroups, limits
from course_pkg.sandbox.limits import MIB, ResourceLimits
from tests.sandbox.conftest import CONTROL_GROUPS, ROOT, needs_sandbox

MEMORY_MIB = 250
PROCESSES = 30


DRIVER = Path(__file__).with_name("bomb_driver.py")


@pytest.fixture(params=[pytest.param("control group", marks=CONTROL_GROUPS), "watchdog"])
def run_bomb(request):
    """Run a bomb by name under the enforcer that is tested; returns the driver's report."""
    kind = request.param
    if kind == "control group" and cgroups.find_parent() is None:
        pytest.skip("no control group can be created here")

    def run(bomb):
        words = (DRIVER, ROOT, kind, bomb, MEMORY_MIB, PROCESSES)
        line = [sys.executable, *map(str, words)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=600, cwd="/")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["ended"], report
        assert (report["kind"] == "watchdog") == (kind == "watchdog")
        assert report["processes_left"] == [] and report["groups_left"] == []
        return report

    return run


BOMBS = ["memory", "shared memory", "memory of children", "tmpfs", "deleted file in tmpfs"]


@needs_sandbox
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_program_that_uses_too_much_memory_is_killed_and_reported(run_bomb, bomb):
    report = run_bomb(bomb)
    assert report["out_of_memory"] and not report["out_of_processes"], report
    assert not report["killed_within_limits"]
    assert report["peak_mib"] > 0.9 * MEMORY_MIB
    if report["kind"] != "watchdog":
        assert report["peak_mib"] <= MEMORY_MIB + 1
    elif bomb == "memory":  # a single process also has the kernel's limit
        assert report["filled_mib"] <= 1.25 * MEMORY_MIB + 1


@needs_sandbox
@pytest.mark.parametrize("bomb", ["fork", "threads"])
def test_a_program_that_starts_too_many_processes_is_killed_and_reported(run_bomb, bomb):
    report = run_bomb(bomb)
    assert report["out_of_processes"] and not report["out_of_memory"], report


@needs_sandbox
@pytest.mark.parametrize(("program", "held_mib"), [("honest", 80), ("honest children", 100)])
def test_a_program_within_the_limits_runs_to_its_end(run_bomb, program, held_mib):
    report = run_bomb(program)
    assert report["returncode"] == 0, report
    assert not report["out_of_memory"] and not report["out_of_processes"]
    assert not report["killed_within_limits"]
    # Pages that six processes share count once.
    assert held_mib <= report["peak_mib"] < 2 * held_mib


def test_without_control_groups_the_watchdog_enforces_the_limits(monkeypatch):
    monkeypatch.setattr(limits, "_parent", lambda: None)
    enforcer = limits.limit_enforcer(ResourceLimits(MIB, 3, 10, MIB), "slot")
    assert enforcer.kind == "watchdog" and enforcer.join_descriptors == ()
    enforcer.close()


# The limits of each process.

LIMITS = ResourceLimits(200 * MIB, 40, 64, 5 * MIB)


def in_child(code):
    prelude = (
        f"import os, resource, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from course_pkg.sandbox.limits import ResourceLimits, set_process_limits\n"
        f"set_process_limits({LIMITS!r})\n"
    )
    line = [sys.executable, "-c", prelude + code]
    return subprocess.run(line, capture_output=True, text=True, timeout=300).stdout.splitlines()


def test_each_process_is_limited_by_the_kernel(tmp_path):
    printed = in_child(f"""
try: files = [os.dup(1) for _ in range(100)]
except OSError as error: print(error.strerror)
os.closerange(10, 100)
try: open({str(tmp_path / "big")!r}, "wb").write(b"x" * (6 << 20))
except OSError as error: print(error.strerror)
try: x = b"x" * (260 << 20)
except MemoryError: print("no memory")
x = b"x" * (200 << 20)
print(resource.getrlimit(resource.RLIMIT_CORE))
""")
    assert printed == ["Too many open files", "File too large", "no memory", "(1, 1)"]


needs_nproc = pytest.mark.skipif(
    limits._linux_release() < limits.NPROC_COUNTS_BY_NAMESPACE,
    reason="this kernel counts all processes of a user",
)


@needs_nproc
def test_the_number_of_processes_is_limited():
    assert in_child("print(resource.getrlimit(resource.RLIMIT_NPROC))") == ["(80, 80)"]


@needs_nproc
@pytest.mark.needs_root  # to become a user that has no other process
def test_a_user_cannot_start_more_processes_than_the_limit():
    code = """
os.setresuid(64322, 64322, 64322)
try:
    for _ in range(100):
        if not os.fork(): os.read(os.pipe()[0], 1)
except BlockingIOError: print("no more", flush=True)
os.kill(-1, 9)
"""
    assert in_child(code) == ["no more"]


def test_limits_are_only_ever_lowered():
    printed = in_child(
        "before = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "set_process_limits(ResourceLimits(1 << 40, 10**6, 10**6, 1 << 40))\n"
        "print(before, resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    assert printed == ["(64, 64) (64, 64)"]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) != (64, 64)  # not in this process
