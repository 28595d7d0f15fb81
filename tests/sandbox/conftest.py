"""A warm parent for the tests, and one child of it in a sandbox."""

import json
import os
from pathlib import Path

import pytest

from course_pkg.sandbox import policy
from course_pkg.sandbox.limits import Limits
from course_pkg.sandbox.pen import Pen
from course_pkg.sandbox.policy import MIB, View
from course_pkg.sandbox.warm import WarmParent

collect_ignore = ["bomb_driver.py", "everyday.py"]  # programs that tests start

ROOT = Path(__file__).parents[2]
LIMITS = Limits(512 * MIB, 64, 256, 64 * MIB, None)
UID = None if os.geteuid() else 0x7100_0000


@pytest.fixture(scope="session")
def parent():
    """A warm parent that runs the code of its jobs."""
    env = policy.environment({"PYTHONPATH": str(ROOT)})
    with WarmParent("tests.sandbox.inside:run", ("random",), env) as warm:
        warm.ready()
        yield warm


@pytest.fixture
def inside(parent):
    """Run code in a sandbox of its own: gives the `result` that it sets."""

    def run(code, view=None, limits=LIMITS, extra=()):
        view = view or View(policy.python_folders(), writable={"/tmp": 8 * MIB})
        out, into = os.pipe()
        with os.fdopen(out) as answers, Pen(view, UID, limits, "test") as pen:
            pen.put(parent, {"code": code}, [into, *extra])
            os.close(into)
            return json.loads(answers.read())

    return run
