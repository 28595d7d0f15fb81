"""What a process has left inside a sandbox: no privileges, no descriptors, no other processes."""

import os

import pytest

from course_pkg.sandbox.limits import MIB, ResourceLimits
from course_pkg.sandbox.policy import INSIDE_UID
from tests.sandbox.conftest import UID, needs_sandbox

pytestmark = needs_sandbox
ID = INSIDE_UID if UID is None else UID
CAPABILITIES = """
rows = dict(line.split(":", 1) for line in open("/proc/self/status"))
result = [int(rows[k], 16) for k in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
result += [int(rows["NoNewPrivs"]), int(rows["Seccomp"])]
"""
NEW_NAMESPACES = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
result = [libc.unshare(0x10000000), libc.mount(b"x", b"/tmp", b"tmpfs", 0, None)]
"""
BIG_FILE = """
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
# Opens what it is not allowed to: the kernel's settings, and the memory of processes that wait.
FILES = """
result = []
for path, mode in {paths}:
    try:
        open(path, mode)
        result.append(f"opened {{path}}")
    except OSError:
        pass
""".format(
    paths=[
        ("/proc/sys/kernel/core_pattern", "w"),
        ("/proc/sys/kernel/ns_last_pid", "w"),
        ("/proc/sysrq-trigger", "w"),
        ("/proc/1/mem", "r+b"),
        ("/proc/2/mem", "r+b"),
    ]
)
WAITING = """
import os
result = []
for pid in (1, 2):
    if os.path.exists(f"/proc/{pid}/status"):
        rows = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
        result.append(int(rows["Seccomp"]))
"""
LEASE = """
import fcntl, os
own = os.open("/tmp/mine", os.O_RDWR | os.O_CREAT)
try:
    fcntl.fcntl(own, 1024, fcntl.F_WRLCK)
    result = "done"
except OSError:
    result = "refused"
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param(
            "import os; result = [*os.getresuid(), *os.getresgid()]", [ID] * 6, id="user and group"
        ),
        pytest.param(CAPABILITIES, [0, 0, 0, 0, 0, 1, 2], id="no capabilities, a filter"),
        pytest.param(NEW_NAMESPACES, [-1, -1], id="no namespaces, no mounts"),
        pytest.param(FILES, [], id="no files of the kernel or of other processes"),
        # An ordinary user's first process is not shown at all.
        pytest.param(WAITING, [2] if UID is None else [2, 2], id="processes that wait"),
        pytest.param(LEASE, "refused", id="no leases, which make others wait"),
        pytest.param(BIG_FILE, "File too large", id="no large file"),
    ],
)
def test_inside(inside, code, expected):
    assert inside(code, limits=ResourceLimits(512 * MIB, 64, 256, 2 * MIB)) == expected


@pytest.mark.needs_root
def test_a_sandbox_of_root_has_no_groups(inside):
    assert inside("import os; result = os.getgroups()") == []


def test_only_the_given_descriptors_are_open(inside, tmp_path):
    code = """
import os
here = os.listdir("/proc/self/fd")
found = sorted(int(fd) for fd in here if os.path.exists(f"/proc/self/fd/{fd}"))
others = [fd for fd in found if fd > 2 and fd not in descriptors]
result = [others, open(descriptors[1], closefd=False).read()]
"""
    (tmp_path / "submission").write_text("submitted")
    with open(os.devnull) as secret, open(tmp_path / "submission") as file:
        os.set_inheritable(secret.fileno(), True)
        assert inside(code, extra=[file.fileno()]) == [[], "submitted"]


def test_two_children_have_different_random_states(inside):
    code = "import random, numpy; result = [random.random(), numpy.random.random()]"
    first = inside(code)
    second = inside(code)
    assert first[0] != second[0] and first[1] != second[1]


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
