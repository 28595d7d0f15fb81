import json
import subprocess
import sys

import pytest

from tests.tables import each_row

PROGRAM = """
import json, sys
from course_pkg.cli import app
try:
    app(json.loads(sys.argv[1]), prog_name="course")
finally:
    print(*sys.modules, file=sys.stderr)
"""
EVALUATION = ["eval", "--task", "multiple-choice", "--model", "tiny", "--limit", "2"]


def loaded(arguments, folder):
    """The modules that a command has loaded when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(arguments)],
        cwd=folder,
        input="Hello!\n",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.slow
@each_row(
    ("arguments", "needed"),
    [
        (EVALUATION, "course_pkg.evaluation.task_run"),
        (["chat", "--model", "tiny", "--max-tokens", "20"], "course_pkg.deployment.chat_session"),
        (["score", "--help"], "course_pkg.evaluation.metric_registry"),
    ],
)
def test_no_command_for_models_loads_the_grader(arguments, needed, tmp_path):
    names = loaded(arguments, tmp_path)
    assert needed in names
    assert [name for name in names if name.startswith("course_pkg.grading")] == []


def test_the_help_of_the_program_loads_no_library_that_computes(tmp_path):
    names = {name.partition(".")[0] for name in loaded(["--help"], tmp_path)}
    assert names.isdisjoint({"torch", "transformers", "numpy", "rich", "nltk"})
