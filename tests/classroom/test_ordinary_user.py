"""An ordinary user's grader gives the scores that root's gives.

Only root can run a process as another user. The suite itself should also be run by an ordinary
user, as CI does.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.classroom import NEEDS_SANDBOX
from tests.classroom.school import School
from tests.exercises.assignments import ROOT

ASSIGNMENT = "lora-math"
NOBODY = 65534
pytestmark = [
    pytest.mark.slow,
    pytest.mark.exhaustive,
    pytest.mark.needs_root,
    NEEDS_SANDBOX,
]


@pytest.fixture
def home():
    """A folder that everybody can read: pytest's own are only for root."""
    with tempfile.TemporaryDirectory(prefix="course-test-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def python(
    home: Path, uid: int, *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess:
    """This Python with this package, run by a user whose home is home/<uid>, there or in cwd."""
    mine = home / str(uid)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(mine),
        "COURSE_CACHE": str(mine / "cache"),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd or mine,
        env=environment,
        user=uid,
        group=uid,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=300,
    )


def course(home: Path, uid: int) -> School:
    """A course with a class of two, which that user owns."""
    mine = home / str(uid)
    school = School(mine, ASSIGNMENT)
    school.submit("ada")
    school.submit("eve", 0.5, "import os; os._exit(3)", at=1000)  # the last cell
    for path in (mine, *mine.rglob("*")):
        os.chown(path, uid, uid)
    return school


@pytest.fixture
def courses(home):
    """The same course for root and for nobody, who can run this Python and build a sandbox."""
    courses = {uid: course(home, uid) for uid in (0, NOBODY)}
    works = "from course_pkg.sandbox.probe import probe; assert probe().ok, probe().detail"
    try:
        tried = python(home, NOBODY, "-c", works)
    except PermissionError as error:
        pytest.skip(f"the user nobody cannot run this Python: {error}")
    if tried.returncode:
        pytest.skip(f"the user nobody cannot run this: {tried.stderr.strip().splitlines()[-1]}")
    return courses


def test_an_ordinary_users_sandbox_isolates_as_roots_does(home, courses):
    tests = [f"tests/sandbox/test_{name}.py" for name in ("enter", "policy", "namespaces")]
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={home / str(NOBODY) / 'tmp'}"]
    done = python(home, NOBODY, "-m", "pytest", *options, *tests, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "passed" in done.stdout


def test_an_ordinary_user_gets_the_same_scores_and_states_as_root(home, courses):
    found = {}
    for uid, school in courses.items():
        done = python(home, uid, "-c", "from course_pkg.cli import app; app()", "grade", ASSIGNMENT)
        assert done.returncode == 1, done.stdout + done.stderr  # eve's kernel died
        rows = school.table().items()
        found[uid] = {student: (row["state"], row["score"]) for student, row in rows}
    assert found[0]["ada"] == ("graded", "24")
    assert found[0]["eve"][0] == "kernel-died"
    assert found[NOBODY] == found[0]
