"""The sample class: built from the sources, graded behind bubblewrap, every submission named."""

import csv
import json
import os
from pathlib import Path

import nbformat
import pytest
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.grading import sample_class
from course_pkg.sandbox.probe import SandboxState, probe

ROOT = Path(__file__).parents[2]
sandbox = pytest.mark.skipif(not probe().ok, reason=f"no sandbox here: {probe().detail}")


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    os.environ["PYTHONPATH"] = str(ROOT)
    root = tmp_path_factory.mktemp("class")
    rows = sample_class.run(ROOT, root)
    return root, {row.student: row for row in rows}


@sandbox
@pytest.mark.slow
def test_full_half_stub_and_broken_get_what_they_deserve(graded):
    _, rows = graded
    assert rows["ada"].score + rows["ada"].to_mark == rows["ada"].max_score
    assert 0 < rows["ben"].score < rows["ada"].score
    assert rows["chi"].score == rows["dan"].score == 0
    assert rows["dan"].state.startswith("not graded: no notebook can be read")


@sandbox
@pytest.mark.slow
def test_grades_and_feedback_are_written_for_those_who_could_be_graded(graded):
    root, rows = graded
    with open(root / "grades.csv", newline="") as file:
        scores = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    assert scores == {student: row.score for student, row in rows.items()}
    pages = {path.parts[-3] for path in root.glob("feedback/*/*/*.html")}
    assert pages == {"ada", "ben", "chi"}


def test_each_student_has_their_own_name_in_the_notebook(tmp_path):
    sample_class.build(ROOT, tmp_path / "class", ["lora-math"])
    for student in ("ada", "ben", "chi"):
        path = tmp_path / "class" / "submitted" / student / "lora-math" / "lora-math.ipynb"
        nb = nbformat.read(path, as_version=4)
        assert f'STUDENT = "{student}"' in {cell.source for cell in nb.cells}
    broken = tmp_path / "class" / "submitted" / "dan" / "lora-math" / "lora-math.ipynb"
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken.read_text())


def test_without_a_sandbox_it_says_so_and_writes_no_grades(tmp_path, monkeypatch):
    state = SandboxState(False, "bubblewrap needs Linux", "grade on a Linux machine")
    monkeypatch.setattr("course_pkg.sandbox.probe.probe", lambda: state)
    done = CliRunner().invoke(app, ["sample-class", "--into", str(tmp_path / "class")])
    assert done.exit_code == 0
    assert "grading skipped: bubblewrap needs Linux; grade on a Linux machine" in done.output
    assert not (tmp_path / "class").exists()


def test_outside_the_course_it_says_where_to_run_it(tmp_path, monkeypatch):
    monkeypatch.setattr("course_pkg.sandbox.probe.probe", lambda: SandboxState(True, ""))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["sample-class"])
    assert done.exit_code == 1 and "run this in the course's folder" in done.output
