"""`course check`: a student's own notebook is run, and every question's report is text."""

import shutil

import nbformat
import pytest
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.grading import own_notebook
from course_pkg.grading.classroom.execution import runner_output
from course_pkg.grading.classroom.execution.runner_output import RunLimits
from tests.grading.classroom.recorded import ROOT, released

NAME = "bleu"
WRONG = "def closest_length(hypothesis_length, reference_lengths):\n    return 0"
RIGHT = "def brevity_penalty(hypothesis_length, reference_length):\n"
RIGHT += "    if hypothesis_length == 0:\n        return 0.0\n"
RIGHT += "    return math.exp(min(0.0, 1 - reference_length / hypothesis_length))"


@pytest.fixture
def course(tmp_path, monkeypatch):
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    shutil.copytree(ROOT / "exercises" / NAME, tmp_path / "exercises" / NAME)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*arguments):
    return CliRunner().invoke(app, ["check", NAME, *arguments])


def started(course, answers):
    """The copy that `course start` makes, with answers by grade_id; its path."""
    assert CliRunner().invoke(app, ["start", NAME]).exit_code == 0
    path = course / "work" / NAME / f"{NAME}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        cell.source = answers.get(name, cell.source)
    nbformat.write(notebook, path)
    return path


def reports(output):
    return {block.partition("\n")[0]: block for block in output.strip().split("\n\n")}


def test_a_missing_notebook_names_the_command_that_makes_it(course):
    done = check()
    assert (done.exit_code, done.stdout) == (2, "")
    assert "there is no work/bleu/bleu.ipynb: run `course start bleu`" in done.stderr


def test_right_wrong_failing_and_missing_answers_are_each_reported(course):
    answers = {
        "by-hand-counts": "counts = undefined",
        "closest": WRONG,
        "penalty": RIGHT,
        "sentence": "%matplotlib no-such-backend",
    }
    path = started(course, answers)
    before = path.read_bytes()
    done = check()
    blocks = reports(done.stdout)
    assert (
        "✓ for c < r the penalty is exp(1 − r/c)" in blocks["bleu/brevity-penalty: 3 of 3 points"]
    )
    assert "given: " in blocks["bleu/closest-length: 0 of 2 points"]
    assert blocks["bleu/corpus: 0 of 8 points"].splitlines()[1:] == ["  not answered yet"]
    undefined = "NameError: name 'undefined' is not defined"
    assert f"code cell 4 (`counts = undefined`) raised {undefined}." in blocks
    assert "code cell 5 (" in blocks["bleu/by-hand/counts: 0 of 1 point"]
    assert "sentence_bleu" in blocks["bleu/sentence: 0 of 4 points"]
    assert list(blocks)[-1] == "3 of 27 points by program"
    assert (done.exit_code, done.stderr) == (1, "")
    assert path.read_bytes() == before


def test_a_named_notebook_needs_no_course_folder_and_all_points_end_with_0(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "solutions" / NAME / f"{NAME}.ipynb", tmp_path / "mine.ipynb")
    done = check("mine.ipynb")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == "27 of 27 points by program"


def test_a_dead_kernel_loses_only_what_comes_after_it(course):
    started(course, {"penalty": RIGHT, "corpus": "import os\nos._exit(1)"})
    done = check()
    blocks = reports(done.stdout)
    died = "the kernel died in code cell 21 (`import os`), and later cells were not run"
    assert "bleu/brevity-penalty: 3 of 3 points" in blocks and f"{died}." in blocks
    assert blocks["bleu/corpus: 0 of 8 points"].splitlines()[1] == f"  {died}"
    assert list(blocks)[-1] == "3 of 27 points by program" and done.exit_code == 1


def test_a_cell_that_takes_too_long_is_interrupted_and_the_others_run(course, monkeypatch):
    limits = RunLimits(cell_timeout_s=10)
    monkeypatch.setattr(runner_output, "RunLimits", lambda: limits)
    started(course, {"penalty": RIGHT, "by-hand-counts": "__import__('time').sleep(3600)"})
    blocks = reports(check().stdout)
    late = "KeyboardInterrupt: it took too long and was interrupted"
    assert f"code cell 4 (`__import__('time').sleep(3600)`) raised {late}." in blocks
    assert "bleu/brevity-penalty: 3 of 3 points" in blocks


def test_a_file_that_cannot_be_checked_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text, says in (
        (None, "there is no notebook mine.ipynb"),
        ("{", "is not a readable notebook"),
        (nbformat.writes(nbformat.v4.new_notebook()), "has no check of bleu"),
    ):
        if text is not None:
            (tmp_path / "mine.ipynb").write_text(text)
        done = check("mine.ipynb")
        assert (done.exit_code, says in done.stderr) == (2, True), done.output


def test_the_points_of_a_person_are_those_of_written_tasks():
    assert own_notebook.written_points(released()) == 4
