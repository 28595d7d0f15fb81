"""In a browser, where no library is, every answer gets the same verdict and the same report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from course_pkg.grading.questions import registry
from course_pkg.pages.labs.assignments import ASSIGNMENTS

ROOT = Path(__file__).parents[3]


def run(*arguments):
    """What `without_libraries` prints, in a process of its own."""
    command = [sys.executable, "-m", "tests.pages.labs.without_libraries", *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_verdicts_and_reports_are_the_same_without_libraries():
    there = run(*ASSIGNMENTS)
    for assignment, asked in ASSIGNMENTS.items():
        found = there[assignment]["found"]
        assert there[assignment]["left out"] == []  # no answer to these uses a library itself
        questions = registry.load(assignment).questions
        assert len(found) == sum(2 + len(questions[name].wrong) for name in asked)
        for name in asked:
            assert found[f"{name}: model answer"][0] == questions[name].points
    assert run(*ASSIGNMENTS, "--blocked") == there


def test_what_is_left_out_needs_a_library():
    errors = run("--needed")
    others = set(registry.assignments()) - set(ASSIGNMENTS)
    assert others <= set(errors)
    assert {name for name in errors if "/" in name} == {
        "benchmarks/newton",
        "benchmarks/strengths",
        "benchmarks/length",
        "paged-attention/write",
        "paged-attention/attention",
    }
    assert {name: text for name, text in errors.items() if "No module named" not in text} == {}
