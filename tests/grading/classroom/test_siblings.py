"""Two submissions run at the same time: neither sees, signals or reaches the other.

Both run the source of meeting.py at the same time; a control runs it in one sandbox, where the two
programs do find each other.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from course_pkg.sandbox.probe import find_bubblewrap
from tests.grading.classroom import NEEDS_SANDBOX

from . import meeting
from .canary_course import CanaryCourse, Graded, grade
from .corpus import base_notebook
from .host import Watch

SOURCE = Path(meeting.__file__).read_text().partition("if __name__")[0]
PATIENCE_S = 300
ALLOWED = {"lock"}  # appendix/threat-model, "Agreements": a lock on a file that both can read
STUDENTS = {"sibling-a": ("a", "b"), "sibling-b": ("b", "a")}
LOOK_AROUND = """
import json, os, random
import numpy as np
met = meet({me!r}, {other!r}, {{"lock"}}, {seconds})
def target(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""
print("FOUND", json.dumps({{
    "met": met,
    "random": [random.random(), float(np.random.rand()), os.urandom(4).hex()],
    "key": get_ipython().kernel.session.key.hex(),
    "files": sorted({{target(f"/proc/self/fd/{{fd}}") for fd in os.listdir("/proc/self/fd")}}),
    "spaces": {{name: target(f"/proc/self/ns/{{name}}") for name in os.listdir("/proc/self/ns")}},
    "pids": [int(name) for name in os.listdir("/proc") if name.isdigit()],
    "uid": os.getuid(),
}}))
"""
pytestmark = [pytest.mark.slow, NEEDS_SANDBOX]


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory) -> tuple[Graded, list[dict], dict]:
    course = CanaryCourse(tmp_path_factory.mktemp("siblings") / "course")
    for student, (me, other) in STUDENTS.items():
        code = SOURCE + LOOK_AROUND.format(me=me, other=other, seconds=PATIENCE_S)
        nb = base_notebook("stub")
        nb.cells.insert(0, nbformat.v4.new_code_cell(code, id="meet"))
        course.submit(student, nb)
    watch = Watch(course.home, course.root)
    chosen = [f"--student={student}" for student in STUDENTS]
    limits = (f"--cell-timeout={2 * PATIENCE_S}", f"--time-limit={3 * PATIENCE_S}")
    graded = grade(course, "--jobs=2", *limits, *chosen)
    left = watch.left(graded.pid)
    reports = []
    for student in STUDENTS:
        match = re.search(r"FOUND (\{.*\})", graded.shown(student))
        assert match, graded.shown(student)[-3000:]
        reports.append(json.loads(match[1]))
    return graded, reports, left


def test_they_run_at_the_same_time_and_interact_only_as_the_threat_model_allows(side_by_side):
    _, (a, b), left = side_by_side
    for one in (a, b):  # each held a lock while the other looked
        assert "lock" in one["met"] and set(one["met"]) <= ALLOWED
        assert len(one["pids"]) <= 6 and max(one["pids"]) < 100  # its own processes
    for name in ("mnt", "pid", "net", "ipc", "uts"):
        assert a["spaces"][name] != b["spaces"][name], name
    shared = set(a["files"]) & set(b["files"])
    assert not {name for name in shared if re.match(r"(socket|pipe):", name)}
    assert not set(a["random"]) & set(b["random"])
    assert a["key"] != b["key"]
    assert left == {}, "left on the machine"


def test_in_one_sandbox_they_interact_in_every_way(tmp_path):
    """The control: in the same namespaces, the same code finds the other each time."""
    options = ["--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev"]
    options += ["--tmpfs", "/tmp", "--tmpfs", "/run", "--tmpfs", "/dev/shm", "--chdir", "/tmp"]
    for path in ("/usr", "/bin", "/lib", "/lib64", "/etc", *{sys.prefix, sys.base_prefix}):
        options += ["--ro-bind-try", path, path]
    options += ["--ro-bind", meeting.__file__, "/meeting.py", "--setenv", "HOME", "/tmp"]
    meet = f"'{sys.executable}' /meeting.py"
    both = f"{meet} a b {PATIENCE_S} & {meet} b a {PATIENCE_S}; wait"
    done = subprocess.run(
        [str(find_bubblewrap()), *options, "--", "sh", "-c", both],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
    )
    assert set(meeting.ways()) - meeting.FORK_ONLY - set(done.stdout.split()) == set(), done.stderr


def test_inherited_memory_would_be_found():
    """The control for the way that only a fork opens."""
    script = f"""
import mmap, os, sys
sys.path.insert(0, {str(Path(meeting.__file__).parent)!r})
import meeting
with open("/dev/shm/course-meet-control", "w+b") as file:
    file.truncate(4096)
    shared = mmap.mmap(file.fileno(), 4096)
os.unlink("/dev/shm/course-meet-control")
one = meeting.Meeting("a", "b")
if os.fork() == 0:
    meeting.Meeting("b", "a").leave_inherited_memory()
    os._exit(0)
os.wait()
print(one.look_inherited_memory())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr
