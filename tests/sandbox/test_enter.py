"""What a process has left inside a sandbox: no privileges, no descriptors, no other processes."""

import os

import pytest

from course_pkg.sandbox.limits import MIB, ResourceLimits
from course_pkg.sandbox.policy import INSIDE_UID
from course_pkg.sandbox.probe import probe

from .conftest import UID

pytestmark = pytest.mark.skipif(not probe().ok, reason=f"no sandbox here: {probe().detail}")


def test_its_user_and_group_are_unprivileged(inside):
    uid, gid, groups = inside(
        "import os; result = [os.getresuid(), os.getresgid(), os.getgroups()]"
    )
    expected = INSIDE_UID if UID is None else UID
    assert uid == gid == [expected] * 3
    assert UID is None or groups == []


def test_it_has_no_capabilities_and_cannot_regain_them(inside):
    code = """
rows = dict(line.split(":", 1) for line in open("/proc/self/status"))
result = [int(rows[k], 16) for k in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
result += [int(rows["NoNewPrivs"]), int(rows["Seccomp"])]
"""
    assert inside(code) == [0, 0, 0, 0, 0, 1, 2]


def test_only_the_given_descriptors_are_open(inside):
    code = """
import os
here = os.listdir("/proc/self/fd")
result = sorted(int(fd) for fd in here if os.path.exists(f"/proc/self/fd/{fd}"))
result = [fd for fd in result if fd > 2 and fd not in descriptors]
"""
    with open(os.devnull) as secret:
        os.set_inheritable(secret.fileno(), True)
        assert inside(code) == []


def test_only_processes_of_the_sandbox_are_visible(inside):
    code = "import os; result = [int(p) for p in os.listdir('/proc') if p.isdigit()]"
    assert max(inside(code)) < 10


@pytest.mark.parametrize(
    "path", ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/ns_last_pid", "/proc/sysrq-trigger"]
)
def test_kernel_settings_cannot_be_opened_for_writing(inside, path):
    code = f"""
try:
    open({path!r}, "w")
    result = "opened"
except OSError as error:
    result = "refused"
"""
    assert inside(code) == "refused"


def test_it_cannot_create_namespaces_or_mounts(inside):
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
result = [libc.unshare(0x10000000), libc.mount(b"x", b"/tmp", b"tmpfs", 0, None)]
"""
    assert inside(code) == [-1, -1]


def test_two_children_have_different_random_states(inside):
    first, second = (inside("import random; result = random.random()") for _ in range(2))
    assert first != second


def test_a_file_cannot_exceed_the_limit(inside):
    code = """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    with open("/tmp/x", "wb", 0) as file:
        while file.write(bytes(2**20)):
            pass
    result = "written"
except OSError as error:
    result = error.strerror
"""
    assert inside(code, limits=ResourceLimits(512 * MIB, 64, 256, 2 * MIB)) == "File too large"


def test_a_given_descriptor_reaches_the_child(inside, tmp_path):
    (tmp_path / "submission").write_text("submitted")
    with open(tmp_path / "submission") as file:
        code = "result = open(descriptors[1], closefd=False).read()"
        assert inside(code, extra=[file.fileno()]) == "submitted"


def test_the_processes_that_wait_inside_are_filtered_and_cannot_be_written_to(inside):
    code = """
import os
result = []
for pid in (1, 2):
    try:
        rows = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
        result.append(int(rows["Seccomp"]))
    except FileNotFoundError:
        result.append("hidden")
    try:
        open(f"/proc/{pid}/mem", "r+b")
        result.append("opened")
    except OSError:
        result.append("refused")
"""
    first = 2 if UID is not None else "hidden"  # an ordinary user's sandbox does not show it at all
    assert inside(code) == [first, "refused", 2, "refused"]


def test_the_number_of_terminals_is_limited(inside):
    code = """
import os
held = []
try:
    while len(held) < 100:
        held.append(os.openpty())
except OSError:
    pass
result = len(held)
"""
    assert 0 < inside(code) <= 16


def test_leases_are_refused_because_they_make_others_wait(inside):
    code = """
import fcntl, os
own = os.open("/tmp/mine", os.O_RDWR | os.O_CREAT)
try:
    fcntl.fcntl(own, 1024, fcntl.F_WRLCK)
    result = "done"
except OSError:
    result = "refused"
"""
    assert inside(code) == "refused"
