"""Grading a class: the commands `course grade` and `nbgrader autograde`, with the same scores."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell

from benchmarks.compare import Comparison, NotMeasured
from course_pkg.grading.classroom.release import program_path
from course_pkg.grading.classroom.runs.sample_class import answered, named
from course_pkg.sandbox.probe import probe

ROOT = Path(__file__).parents[1]
ASSIGNMENT = "lora-math"
STUDENTS = 40
LIMIT = 1 / 12  # at least twelve times the submissions per minute


def measure() -> Iterator[Comparison | NotMeasured]:
    """Seconds per submission on one class whose notebooks import torch and transformers."""
    if not probe().ok:
        reason = f"there is no sandbox here: {probe().detail}"
        yield NotMeasured("course grade and nbgrader autograde", reason)
        return
    with tempfile.TemporaryDirectory() as folder:
        courses = [_course(Path(folder, name)) for name in ("ours", "theirs")]
        python = [sys.executable, "-m"]
        ours = _timed(courses[0], [*python, "course_pkg", "grade", ASSIGNMENT])
        theirs = _timed(courses[1], [*python, "nbgrader", "autograde", ASSIGNMENT])
        scores = [_scores(course) for course in courses]
    if scores[0] != scores[1] or len(scores[0]) != STUDENTS:
        raise RuntimeError(f"the scores differ: {scores}")
    what = f"grading {STUDENTS} submissions, {len(os.sched_getaffinity(0))} cores, per submission"
    each = (1000 * seconds / STUDENTS for seconds in (ours, theirs))
    yield Comparison(what, "ms", *each, ours / theirs, LIMIT)


def _course(root: Path) -> Path:
    """A course with its class; every other student answers half of the questions."""
    for name in ("solutions", "exercises"):
        shutil.copytree(ROOT / name / ASSIGNMENT, root / name / ASSIGNMENT)
    shutil.copy(ROOT / "nbgrader_config.py", root)
    name = Path(ASSIGNMENT) / f"{ASSIGNMENT}.ipynb"
    solution, released = (
        nbformat.read(ROOT / folder / name, as_version=4) for folder in ("solutions", "exercises")
    )
    for number in range(STUDENTS):
        notebook = answered(released, solution, 0.5 if number % 2 else 1.0)
        notebook.cells.insert(0, new_code_cell("import torch\nimport transformers"))
        student = f"s{number:02}"
        path = root / "submitted" / student / name
        path.parent.mkdir(parents=True)
        nbformat.write(named(notebook, student), path)
    _timed(root, [sys.executable, "-m", "nbgrader", "generate_assignment", ASSIGNMENT, "--force"])
    return root


def _timed(course: Path, command: list[str]) -> float:
    environment = {**os.environ, "PATH": program_path(), "PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    done = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.perf_counter() - began


def _scores(course: Path) -> dict[str, float]:
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course}/gradebook.db", "llm-course") as book:
        return {s.student.id: s.score for s in book.assignment_submissions(ASSIGNMENT)}
