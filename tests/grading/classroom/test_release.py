"""Releasing and starting assignments overwrites nothing that somebody wrote."""

import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.grading.classroom.release import ReleaseError, release_assignment, start_work

ROOT = Path(__file__).parents[3]


@pytest.fixture
def course(tmp_path):
    """A course as cloned: solutions and exercises, committed."""
    for name in ("solutions", "exercises"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    (tmp_path / ".gitignore").write_text("_build\ngradebook.db\n")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y.z"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    return tmp_path


def notebook(course, folder="exercises"):
    return course / folder / "lora-math" / "lora-math.ipynb"


def edit_source(course):
    source = notebook(course, "solutions")
    source.write_text(source.read_text().replace("# LoRA by hand", "# LoRA, by hand"))


@pytest.mark.slow
def test_release_updates_changed_exercises_and_never_a_students_work(course):
    before = notebook(course).read_bytes()
    assert release_assignment(course, "lora-math") is False
    assert notebook(course).read_bytes() == before
    edit_source(course)
    assert release_assignment(course, "lora-math") is True  # as committed: an earlier release
    assert "# LoRA, by hand" in notebook(course).read_text()
    notes = notebook(course).with_name("notes.txt")
    notes.write_text("my answer")
    with pytest.raises(ReleaseError, match="changed by hand: move your work to work/lora-math"):
        release_assignment(course, "lora-math")
    assert notes.read_text() == "my answer"
    notes.unlink()
    shutil.copytree(ROOT / "solutions", course / "solutions", dirs_exist_ok=True)
    assert release_assignment(course, "lora-math") is True  # not committed, but the last release
    assert notebook(course).read_bytes() == before


def test_start_copies_once_and_keeps_an_existing_copy(course):
    folder = start_work(course, "lora-math")
    mine = notebook(course, "work")
    assert mine.parent == folder and mine.read_bytes() == notebook(course).read_bytes()
    mine.write_text("my answer")
    with pytest.raises(ReleaseError, match="you have started already"):
        start_work(course, "lora-math")
    assert mine.read_text() == "my answer"
    (notes := folder / "notes.txt").write_text("my notes")
    mine.unlink()
    start_work(course, "lora-math")
    assert mine.read_bytes() == notebook(course).read_bytes() and notes.read_text() == "my notes"


def test_starting_an_unknown_assignment_lists_the_known_ones(course, monkeypatch):
    monkeypatch.chdir(course)
    done = CliRunner().invoke(app, ["start", "lora"])
    assert done.exit_code == 2
    there = ", ".join(sorted(folder.name for folder in (course / "exercises").iterdir()))
    assert "lora-math" in there
    assert f"there is no exercises/lora; found: {there}" in done.output
