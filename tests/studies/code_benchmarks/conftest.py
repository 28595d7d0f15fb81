"""A runner for the tests of code benchmarks, with short limits."""

import pytest

from course_pkg.sandbox.limits import MIB
from course_pkg.sandbox.probe import probe
from course_pkg.studies.code_benchmarks.problems import load_code_items
from course_pkg.studies.code_benchmarks.program_runner import ProgramLimits, ProgramRunner

LIMITS = ProgramLimits(cpu_s=1, wall_s=20, memory_bytes=96 * MIB, processes=8, disk_bytes=2 * MIB)
needs_sandbox = pytest.mark.skipif(not probe().ok, reason=f"no sandbox here: {probe().detail}")


@pytest.fixture(scope="session")
def runner():
    """A runner with short limits, for all tests."""
    with ProgramRunner(LIMITS) as started:
        yield started


@pytest.fixture(scope="session")
def double():
    """The problem of a function `double`."""
    return next(item for item in load_code_items() if item.id == "double")
