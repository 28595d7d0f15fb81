"""Control groups: everything inside is killed, nothing is left, and a parent is found by trying."""

import os
import signal
import subprocess

import pytest

from course_pkg.sandbox import cgroups
from course_pkg.sandbox.limits import MIB
from tests.sandbox.conftest import CONTROL_GROUPS


@pytest.fixture(scope="module", params=[pytest.param("here", marks=CONTROL_GROUPS)])
def parent():
    usable = cgroups.find_parent()
    if usable is None:
        pytest.skip("no control group can be created here")
    return usable


@pytest.fixture
def group(parent):
    created = cgroups.Cgroup(parent, "test", 100 * MIB, 20)
    yield created
    created.close()


def started_in(group, script):
    """A shell inside the group, once it has printed "up"."""
    process = subprocess.Popen(
        ["sh", "-c", f"echo up; {script}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: [os.write(join, b"0") for join in group.join_descriptors],
    )
    assert process.stdout.readline() == b"up\n"
    return process


def test_killing_a_group_kills_all_processes_and_none_can_start(group):
    stubborn = "trap '' TERM INT HUP; for i in 1 2 3 4 5; do setsid sleep 600 & done; echo; wait"
    process = started_in(group, stubborn)
    process.stdout.readline()
    assert len(group._members()) == 6
    group.kill()
    assert group._members() == set()
    assert process.wait(timeout=120) == -signal.SIGKILL
    late = started_in(group, "sleep 600 & wait")
    assert late.wait(timeout=120) != 0  # it may join, but its fork is refused
    assert group.out_of_processes()


def test_closing_a_group_kills_and_removes_it_and_may_be_repeated(parent, group):
    process = started_in(group, "exec sleep 600")
    second = cgroups.Cgroup(parent, "test", 100 * MIB, 20)  # as of a killed grader with our id
    second.close()
    folders = group._folders
    descriptors = group.join_descriptors
    assert all(folder.is_dir() for folder in folders)
    group.close()
    group.close()
    assert process.wait(timeout=120) == -signal.SIGKILL
    assert not any(folder.exists() for folder in folders)
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


@pytest.mark.parametrize("name", ["../up", "a/b", "", "a b", "a\n"])
def test_a_name_that_is_not_one_part_of_a_path_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="name"):
        cgroups.Cgroup(cgroups.CgroupParent("cgroup v2", tmp_path, tmp_path), name, MIB, 1)
    assert not list(tmp_path.iterdir())


def test_only_the_groups_of_graders_that_were_killed_are_removed(parent, group):
    dead = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True).stdout.strip()
    stale = parent.memory / f"course-{dead}-slot"
    stale.mkdir()
    cgroups._remove_stale(parent)
    assert not stale.exists()
    assert all(folder.is_dir() for folder in group._folders)


# Where groups can be created: other machines, as files.

V2 = "31 23 0:28 {root} {{top}} rw,relatime shared:1 - cgroup2 cgroup2 rw\n"
BOTH = "cpu memory pids\n"
DELEGATED = {"cgroup.controllers": BOTH, "cgroup.subtree_control": BOTH}
CLOSED = {"cgroup.controllers": BOTH, "cgroup.subtree_control": "", "cgroup.type": "domain"}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Write a machine's /proc and control groups; {top} in `mountinfo` is the groups' folder.

    groups: for each folder below the top, the files in it. parents: of processes 10 and 20.
    """
    top = tmp_path / "cgroup"
    monkeypatch.setattr(cgroups, "PROC", tmp_path / "proc")

    def build(own, mountinfo, groups, parents=()):
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(own)
        (tmp_path / "proc/self/mountinfo").write_text(mountinfo.format(top=top))
        for folder, files in groups.items():
            (top / folder).mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (top / folder / name).write_text(text)
        for pid, parent in zip((10, 20), parents, strict=False):
            (tmp_path / f"proc/{pid}").mkdir()
            (tmp_path / f"proc/{pid}/stat").write_text(f"{pid} (a) b) S {parent} 0 0")
        return top

    return build


def test_version_2_uses_the_ancestors_that_delegate_both_controllers(machine):
    session = CLOSED | {"cgroup.procs": "10\n20\n"}
    groups = {"": DELEGATED, "user": DELEGATED, "user/session": session}
    top = machine("0::/user/session\n", V2.format(root="/"), groups, parents=(1, 1))
    expected = [cgroups.CgroupParent("cgroup v2", folder, folder) for folder in (top / "user", top)]
    assert list(cgroups._candidates()) == expected
    leaf = top / "user/session" / cgroups.LEAF
    assert not leaf.exists()  # 10 and 20 are not one process tree


def test_alone_in_a_scope_the_grader_moves_to_a_group_below(machine, monkeypatch):
    undo = []
    monkeypatch.setattr(cgroups.atexit, "register", lambda *call: undo.append(call))
    leaf = f"g.scope/{cgroups.LEAF}"
    groups = {"g.scope": CLOSED | {"cgroup.procs": "10\n20\n"}, leaf: {"cgroup.procs": ""}}
    top = machine("0::/g.scope\n", V2.format(root="/"), groups, parents=(1, 10))
    list(cgroups._candidates())
    assert (top / "g.scope/cgroup.subtree_control").read_text() == "+memory +pids"
    moved = top / leaf / "cgroup.procs"
    assert moved.read_text() in ("10", "20")  # the kernel's file would append
    ((function, *arguments),) = undo
    assert arguments[2] == os.getpid()
    arguments[2] += 1
    function(*arguments)  # does nothing in a fork
    assert (top / "g.scope/cgroup.subtree_control").read_text() == "+memory +pids"


@pytest.mark.parametrize(
    ("own", "root", "folder", "kind"),
    [
        ("/a.scope", "/", "a.scope", "systemd scope"),
        ("/docker/1/inner", "/docker/1", "inner", "cgroup v2"),  # a container's part is mounted
        ("/", "/docker/1", "", "cgroup v2"),  # a container with a namespace of its own
    ],
)
def test_a_scope_is_named_and_a_container_has_its_part_of_the_tree(
    machine, own, root, folder, kind
):
    top = machine(f"0::{own}\n", V2.format(root=root), {folder: DELEGATED})
    expected = cgroups.CgroupParent(kind, top / folder, top / folder)
    assert list(cgroups._candidates()) == [expected]


def test_version_1_needs_both_controllers(machine):
    own = "9:name=systemd:/\n8:pids:/job\n4:memory:/job\n1:cpu,cpuacct:/\n0::/\n"
    line = "3 31 0:3 / {{top}}/{0} rw - cgroup cgroup rw,{0}\n"
    both = line.format("memory") + line.format("pids")
    top = machine(own, both, {"memory/job": {}, "pids/job": {}})
    expected = cgroups.CgroupParent("cgroup v1", top / "memory/job", top / "pids/job")
    assert list(cgroups._candidates()) == [expected]
    (cgroups.PROC / "self/mountinfo").write_text(line.format("memory").format(top=top))
    assert list(cgroups._candidates()) == []
