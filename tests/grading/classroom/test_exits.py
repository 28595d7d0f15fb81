"""The same fault has the same exit code in every `course` command; a wrong folder stays empty."""

import shutil
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.grading.classroom.execution import local_executor
from course_pkg.grading.classroom.gradebook.nbgrader_api import GradebookLost
from course_pkg.grading.classroom.submissions.collect import SourceError
from course_pkg.sandbox.namespaces import SandboxFailed
from course_pkg.sandbox.probe import SandboxState

ROOT = Path(__file__).parents[3]
NAME = "lora-math"
RELEASE = "course_pkg.grading.classroom.release."
RUNS = "course_pkg.grading.classroom.runs."
BOOK = "course_pkg.grading.classroom.gradebook.gradebook.CourseGradebook"
# Each command with its arguments, and the function that does its work.
COMMANDS = {
    "author-check": ([NAME], "course_pkg.grading.author.matrix"),
    "bundle": ([], "course_pkg.grading.classroom.bundle.bundle"),
    "check": ([NAME], "course_pkg.grading.own_notebook.own_notebook"),
    "chat": ([], "course_pkg.deployment.chat_model.load_chat"),
    "doctor": ([], "course_pkg.cli.doctor.diagnose"),
    "eval": (["--task", "short-answers"], "course_pkg.evaluation.task_file.load_task"),
    "finetune": (["mine.jsonl"], "course_pkg.finetuning.own_data.finetune.finetune"),
    "export": (["my-adapter"], "course_pkg.deployment.export.export_model.export"),
    "export-grades": ([NAME], BOOK),
    "extend": ([NAME, "ada", "--hours", "1"], BOOK),
    "grade": ([NAME], f"{RUNS}grade_class.grade"),
    "model": ([], "course_pkg.lm.smollm2.prepare"),
    "remove-student": (["ada", "--yes"], BOOK),
    "rename-student": (["ada", "al1"], BOOK),
    "results": ([NAME], BOOK),
    "release": ([NAME], f"{RELEASE}release_assignment"),
    "sample-class": ([], f"{RUNS}sample_class.build"),
    "score": (["bleu", "r", "-i", "s"], "course_pkg.metrics.text_files.read_scored"),
    "serve": ([], "course_pkg.deployment.serve.serve"),
    "start": ([NAME], f"{RELEASE}start_work"),
}
OF_A_CLASS = ["export-grades", "extend", "remove-student", "rename-student", "results"]
IN_THE_COURSE = ["author-check", "bundle", "check", "grade", "release", "sample-class", "start"]
IN_THE_COURSE += OF_A_CLASS
DISK_FULL = OSError(28, "No space left on device")


def run(command: str, *more: str):
    return CliRunner().invoke(app, [command, *COMMANDS[command][0], *more])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("course_pkg.sandbox.probe.probe", lambda: SandboxState(True, ""))
    monkeypatch.setattr(f"{RUNS}grade_class.probe", lambda: SandboxState(True, ""))
    monkeypatch.setattr("course_pkg.cli.grade_commands.signal.signal", lambda *_: None)
    return tmp_path


@pytest.fixture
def course(folder):
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    for place in ("exercises", "solutions"):
        shutil.copytree(ROOT / place / NAME, folder / place / NAME)
    return folder


def test_every_command_is_in_the_table():
    assert set(get_command(app).commands) == set(COMMANDS)


# What goes wrong: the exit code and a part of the message.
ERRORS = [
    (DISK_FULL, 4, "what was finished before is kept"),
    (GradebookLost("it\x1b[2J ended"), 4, "error: it\\x1b[2J ended"),
    (PermissionError(13, "Permission denied", "/x"), 4, "Permission denied"),
    (SandboxFailed("a fork server did not start"), 4, "error: a fork server did not start"),
    (SourceError("nothing there"), 2, "error: nothing there"),
    (TypeError("x"), 4, "failed because of a bug in it"),
    (KeyboardInterrupt(), 130, "run the same command again to continue"),
]


def fails_as_said(monkeypatch, command, error, code, says):
    """Whether the command ends so if the function that does its work raises the error."""

    def failing(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(COMMANDS[command][1], failing)
        done = run(command)
    return (done.exit_code, says in done.stderr) == (code, True)


def test_an_error_has_one_exit_code_and_one_message(course, monkeypatch):
    (course / ".grading").mkdir(mode=0o700)
    wrong = [row for row in ERRORS if not fails_as_said(monkeypatch, "results", *row)]
    wrong += [name for name in COMMANDS if not fails_as_said(monkeypatch, name, *ERRORS[0])]
    assert wrong == []


def test_an_unknown_option_is_not_possible():
    assert [name for name in COMMANDS if run(name, "--no-such-option").exit_code != 2] == []


def test_a_wrong_folder_is_named_and_stays_empty(folder):
    for command in IN_THE_COURSE:
        done = run(command)
        assert done.exit_code == 2, (command, done.output)
        assert "run this in the course's folder" in done.stderr, command
        assert list(folder.iterdir()) == [], command


def test_an_unknown_assignment_is_named_and_leaves_nothing(course):
    before = sorted(course.rglob("*"))
    for command in ("author-check", "check", "grade", "release", "start"):
        done = CliRunner().invoke(app, [command, "blue"])
        said = (done.exit_code, "blue" in done.stderr, NAME in done.stderr)
        assert said == (2, True, True), (command, done.output)
        assert sorted(course.rglob("*")) == before, command


def test_a_class_that_was_never_graded_is_left_alone(course):
    before = sorted(course.rglob("*"))
    for command in OF_A_CLASS:
        done = run(command)
        assert (done.exit_code, "nothing has been graded" in done.stderr) == (2, True), command
        assert sorted(course.rglob("*")) == before, command


def test_an_impossible_request_leaves_nothing(course):
    before = sorted(course.rglob("*"))
    for more, named in (
        ("", ""),
        ("--submitted nowhere", "nowhere"),
        ("--jobs 0", "--jobs"),
        ("--gpu-jobs -1", "--gpu-jobs"),
        ("--gpu-memory 0", "--gpu-memory"),
    ):
        done = run("grade", *more.split())
        assert (done.exit_code, named in done.output) == (2, True), done.output
        assert sorted(course.rglob("*")) == before, more


def test_progress_shows_before_the_sandboxes_start(course, monkeypatch):
    def starting(*_):
        raise SandboxFailed("no memory")

    path = course / "submitted" / "ada" / NAME / f"{NAME}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    monkeypatch.setattr(local_executor, "ForkServer", starting)
    done = run("grade")
    assert (done.exit_code, done.stderr) == (4, "error: no memory\n")
    assert done.stdout == "1 submission; starting the sandboxes\n"
