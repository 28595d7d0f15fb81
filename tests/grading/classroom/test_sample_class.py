"""The sample class: built from the sources, graded as a real one, every submission named."""

import csv
import json
from pathlib import Path

import nbformat
import pytest
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.grading.classroom.runs import sample_class
from course_pkg.grading.classroom.runs.progress import ProgressDisplay
from course_pkg.sandbox.probe import SandboxState
from tests.grading.classroom import NEEDS_SANDBOX

ROOT = Path(__file__).parents[3]


ALL = "every assignment"  # which `make` grades too


@pytest.fixture(
    scope="module",
    params=["lora-math", pytest.param(ALL, marks=[pytest.mark.exhaustive, pytest.mark.minutes])],
)
def graded(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("class")
    assignments = sample_class.build(ROOT, root)
    if request.param != ALL:
        assignments = [request.param]
    with ProgressDisplay() as show:
        records = sample_class.grade(root, assignments, show)
    return root, records


@NEEDS_SANDBOX
@pytest.mark.slow
def test_full_half_empty_and_broken_submissions_get_their_scores(graded):
    for records in graded[1].values():
        rows = {record.student: record for record in records}
        assert rows["ada"].score == rows["ada"].max_score
        assert 0 < rows["ben"].score < rows["ada"].score
        assert rows["chi"].score == rows["dan"].score == 0
        states = {student: record.state.value for student, record in rows.items()}
        assert states == {"ada": "graded", "ben": "graded", "chi": "graded", "dan": "unreadable"}
        assert not any(record.remarks for record in records)


@NEEDS_SANDBOX
@pytest.mark.slow
def test_nbgraders_export_and_feedback_agree_with_the_results(graded):
    root, records = graded
    with open(root / "grades.csv", newline="") as file:
        exported = {(r["assignment"], r["student_id"]): r["score"] for r in csv.DictReader(file)}
    for assignment, rows in records.items():
        with open(root / "results" / assignment / "grades.csv", newline="") as file:
            ours = {row["student"]: row["score"] for row in csv.DictReader(file)}
        for record in rows:
            assert float(exported[assignment, record.student]) == record.score
            assert float(ours[record.student]) == record.score
            page = root / "feedback" / record.student / assignment / f"{assignment}.html"
            assert page.is_file()


def test_every_notebook_contains_its_students_name(tmp_path):
    assignments = sample_class.build(ROOT, tmp_path / "class")
    assert "lora-math" in assignments
    for student in ("ada", "ben", "chi"):
        path = tmp_path / "class" / "submitted" / student / "lora-math" / "lora-math.ipynb"
        nb = nbformat.read(path, as_version=4)
        assert f'STUDENT = "{student}"' in {cell.source for cell in nb.cells}
    broken = tmp_path / "class" / "submitted" / "dan" / "lora-math" / "lora-math.ipynb"
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken.read_text())


def test_make_grades_a_few_assignments_which_exist(tmp_path):
    few = sample_class.build(ROOT, tmp_path / "class", every=False)
    assert few == sorted(sample_class.ASSIGNMENTS)


def test_without_a_sandbox_it_writes_no_grades_and_says_so(tmp_path, monkeypatch):
    state = SandboxState(False, "bubblewrap needs Linux", "grade on a Linux machine")
    monkeypatch.setattr("course_pkg.sandbox.probe.probe", lambda: state)
    done = CliRunner().invoke(app, ["sample-class", "--into", str(tmp_path / "class")])
    assert done.exit_code == 3
    assert "grading skipped: bubblewrap needs Linux; grade on a Linux machine" in done.output
    assert not (tmp_path / "class").exists()
