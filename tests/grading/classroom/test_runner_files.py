"""The files of a GPU runner: the workflow, the script that it starts, and the container's recipe.

Their commands run here with a course, a grader and an nvidia-smi that are none.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from course_pkg.grading.classroom.execution.runner_output import State
from tests.exercises.assignments import ROOT
from tests.sandbox.fake_gpus import FakeGpus

WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/grade.yml").read_text("utf-8"))
JOB = WORKFLOW["jobs"]["grade"]
RECIPE = (ROOT / "runner/Containerfile").read_text("utf-8")
IGNORED = (ROOT / "runner/Containerfile.dockerignore").read_text("utf-8").splitlines()
COURSE = """#!/bin/sh
echo "$@" >>calls
[ "$1" = grade ] || exit 0
echo "ada 17/24"
[ ! -f code ] || exit "$(cat code)"
"""


@pytest.fixture
def course(tmp_path):
    root = tmp_path / "course"
    (root / ".venv/bin").mkdir(parents=True)
    (root / ".venv/bin/course").write_text(COURSE)
    (root / ".venv/bin/course").chmod(0o755)
    (root / ".venv/bin/python").symlink_to(sys.executable)
    (root / "nbgrader_config.py").touch()
    shutil.copytree(ROOT / "runner", root / "runner")
    return root


def states(course: Path, *of_students: str, code: int = 0) -> None:
    folder = course / "results/lora-script"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f'"s{number}","{state}"' for number, state in enumerate(of_students)]
    (folder / "grades.csv").write_text("\n".join(['"student","state"', *rows, ""]))
    (course / "code").write_text(str(code))


def grade(course: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["runner/grade", *arguments], cwd=course, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("of_students", "code", "exit_code"),
    [
        (["graded", "graded"], 0, 0),
        (["graded", "timed-out"], 1, 0),  # a student's state is no failure of the runner
        (["graded", str(State.WAITING)], 1, 1),
    ],
)
def test_the_runner_prints_states_and_no_names(course, of_students, code, exit_code):
    states(course, *of_students, code=code)
    done = grade(course, "lora-script", "--gpu-jobs", "1")
    assert done.returncode == exit_code, done.stderr
    assert "ada" not in done.stdout + done.stderr and "s0" not in done.stdout
    lines = {line.strip() for line in done.stdout.splitlines()}
    assert lines == {f"{of_students.count(state)} {state}" for state in of_students}
    assert (course / "calls").read_text() == "grade lora-script --gpu-jobs 1\n"
    log = course / "_build/logs/grade-lora-script.log"
    assert log.read_text() == "ada 17/24\n" and log.stat().st_mode & 0o077 == 0


def test_a_failure_of_the_grader_is_the_runners(course):
    states(course, "graded", code=4)
    done = grade(course, "lora-script")
    assert done.returncode == 4 and "exit code 4; why is in _build/logs/" in done.stdout


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "$(touch new)", "x;touch new"])
def test_only_a_name_is_an_assignment(course, name):
    done = grade(course, name)
    assert (done.returncode, "usage: runner/grade" in done.stderr) == (2, True)
    assert not (course / "new").exists() and not (course / "calls").exists()


def test_a_folder_that_is_no_course_is_named(course):
    (course / "nbgrader_config.py").unlink()
    done = grade(course, "lora-script")
    assert done.returncode == 2 and f"in {course}" in done.stderr


def test_the_workflow_starts_by_hand_only_and_may_do_nothing_on_github():
    triggers = WORKFLOW[True]  # YAML 1.1 reads `on` so
    assert set(triggers) == {"workflow_dispatch"} and WORKFLOW["permissions"] == {}
    assert JOB["if"] == "github.ref == 'refs/heads/main'"
    assert JOB["runs-on"] == ["self-hosted", "linux", "gpu"]
    assert not WORKFLOW["concurrency"]["cancel-in-progress"]
    assert all(set(step) == {"name", "run"} for step in JOB["steps"])  # no action of somebody else
    assert all("${{" not in step["run"] for step in JOB["steps"])  # nothing typed enters a shell


def run_workflow(course: Path, machine: FakeGpus, **inputs: str) -> tuple[int, str]:
    """Run the steps as GitHub's runner does: bash with -e and pipefail, in the course's folder."""
    assert JOB["defaults"]["run"]["shell"] == "bash"
    summary = course.parent / "summary.md"
    env = {"PATH": f"{machine.folder / 'bin'}:/usr/bin:/bin", "GITHUB_STEP_SUMMARY": str(summary)}
    for name, value in JOB["env"].items():
        key = re.fullmatch(r"\$\{\{ inputs\.(\w+) \}\}", value)[1]
        default = WORKFLOW[True]["workflow_dispatch"]["inputs"][key].get("default", "")
        env[name] = inputs.get(key, str(default).lower())
    for step in JOB["steps"]:
        line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(line, cwd=course, env=env, capture_output=True, text=True)
        if done.returncode:
            return done.returncode, done.stdout + done.stderr
    return 0, summary.read_text()


def test_the_commands_of_the_workflow_grade_the_assignment(course, tmp_path):
    states(course, "graded", "graded")
    machine = FakeGpus(tmp_path / "machine", 0)
    code, said = run_workflow(course, machine, assignment="lora-script")
    assert (code, said) == (0, "    2 graded\n")
    run_workflow(course, machine, assignment="lora-script", regrade="true")
    calls = (course / "calls").read_text().splitlines()
    assert calls == ["doctor", "grade lora-script", "doctor", "grade lora-script --regrade"]
    states(course, str(State.WAITING), code=1)
    assert run_workflow(course, machine, assignment="lora-script")[0] == 1


def test_the_workflow_ends_where_there_is_no_course_or_no_driver(course, tmp_path):
    machine = FakeGpus(tmp_path / "machine", 0)
    (machine.folder / "fails").write_text("no driver\n")
    assert run_workflow(course, machine, assignment="x") == (9, "no driver\n")
    code, said = run_workflow(tmp_path, machine, assignment="x")
    assert code == 1 and "set the variable COURSE_FOLDER" in said


def commands(instruction: str) -> list[str]:
    """The arguments of every such instruction of the recipe, continued lines joined."""
    text = RECIPE.replace("\\\n", " ")
    return re.findall(rf"^{instruction} +(.*)$", text, re.MULTILINE)


def test_the_recipe_takes_its_versions_from_the_lock():
    (image,) = commands("FROM")
    version = re.fullmatch(r"python:(3\.\d+)-slim-bookworm", image)[1]
    assert version in ("3.11", "3.12", "3.13")
    packages, setup = commands("RUN")
    assert "pip" not in packages and "pip" not in setup  # make installs requirements.txt
    assert not re.search(r"https?://|==", RECIPE)
    assert commands("ENTRYPOINT") == ['["/course/runner/grade"]']


def test_the_recipe_copies_all_that_it_builds_from_and_nothing_of_a_class(tmp_path):
    names = [name for line in commands("COPY") for name in line.split()[:-1]]
    allowed = {line[1:] for line in IGNORED if line.startswith("!")}
    assert "*" in IGNORED and allowed == set(names)
    for name in names:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    (make,) = re.findall(r"make setup model VENV=\S+", commands("RUN")[1])
    line = [*shlex.split(make), "--dry-run", f"PYTHON={sys.executable}"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    planned = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert planned.returncode == 0, planned.stderr
    assert "/opt/venv/bin/python -m pip install --no-deps" in planned.stdout
    assert "/opt/venv/bin/course model" in planned.stdout
    metadata = "import setuptools.build_meta as b; b.prepare_metadata_for_build_editable('.')"
    built = subprocess.run([sys.executable, "-c", metadata], cwd=tmp_path, capture_output=True)
    assert built.returncode == 0, built.stderr  # the package finds its README and its license
