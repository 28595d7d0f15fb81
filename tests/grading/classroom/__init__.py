"""Tests of `course_pkg.grading.classroom`, the grader of a class."""

import pytest

from course_pkg.sandbox.probe import probe

NEEDS_SANDBOX = pytest.mark.skipif(not probe().ok, reason=f"no sandbox here: {probe().detail}")
