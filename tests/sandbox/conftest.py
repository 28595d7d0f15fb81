"""A fork server for the tests, and code run by one of its children in a sandbox."""

import json
import os
from functools import partial
from pathlib import Path

import pytest

from course_pkg.sandbox import policy
from course_pkg.sandbox.fork_server import ForkServer
from course_pkg.sandbox.limits import MIB, ResourceLimits
from course_pkg.sandbox.policy import View
from course_pkg.sandbox.probe import probe
from course_pkg.sandbox.process import SandboxedProcess

collect_ignore = ["bomb_driver.py", "everyday.py", "kills_itself.py"]  # programs that tests start

ROOT = Path(__file__).parents[2]
ENVIRONMENT = policy.environment({"PYTHONPATH": str(ROOT)})
TARGET = "tests.sandbox.inside:run"
# Ordinary users can create control groups on few machines, so `-m needs_root` runs these tests too.
CONTROL_GROUPS = [pytest.mark.needs_root] if os.geteuid() == 0 else []
LIMITS = ResourceLimits(512 * MIB, 64, 256, 64 * MIB)
UID = None if os.geteuid() else 0x7100_0000
needs_sandbox = pytest.mark.skipif(not probe().ok, reason=f"no sandbox here: {probe().detail}")


def run_inside(server, code, view=None, limits=LIMITS, extra=()):
    """Run code in a new sandbox; the `result` that the code sets."""
    view = view or View(policy.python_folders(), writable={"/tmp": 8 * MIB})
    out, into = os.pipe()
    with os.fdopen(out) as answers, SandboxedProcess(view, UID, limits, "test") as process:
        process.start(server, {"code": code}, [into, *extra])
        os.close(into)
        return json.loads(answers.read())


@pytest.fixture(scope="session")
def server():
    with ForkServer(TARGET, ("numpy",), ENVIRONMENT) as started:
        started.ready()
        yield started


@pytest.fixture
def inside(server):
    return partial(run_inside, server)
