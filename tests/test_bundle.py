"""`course bundle`, and `make` in the students' copy that it writes."""

import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.grading.classroom.bundle import SHOWN, bundle, files, lines_with_addresses
from course_pkg.grading.classroom.release import ReleaseError, mistyped, release_assignment

ROOT = Path(__file__).parents[1]
INSTRUCTORS = {".ci", ".github", "deploy", "nbgrader_config.py", "runner", "solutions", "tests"}
SHARED = ["Makefile", "course_pkg/checks.py", "exercises/a/a.ipynb"]
CONFIG = "nbgrader_config.py"
PRIVATE = [
    "solutions/a/a.ipynb",
    "tests/t.py",
    "submitted/ada/a/a.ipynb",
    "autograded/x",
    "feedback/x",
    "results/a/index.html",
    ".grading/secret",
    "gradebook.db",
    "grades.csv",
    "roster.csv",
    "class.zip",
    ".env",
    ".venv/pip.conf",
    "_build/html/x",
    "work/a/a.ipynb",
    "course_pkg/__pycache__/x.pyc",
    "exercises/.ipynb_checkpoints/a.ipynb",
]
PRIVATE_NAMES = [".env", "id_ed25519", "grader.pem", "Roster 2026.csv", "gradebook.db", "w.zip"]


@pytest.fixture
def course(tmp_path):
    """A course's folder without git, with all that an instructor has in it."""
    for name in SHARED + PRIVATE:
        path = tmp_path / "course" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    (tmp_path / "course" / CONFIG).write_text("")
    return tmp_path / "course"


def inside(path: Path) -> list[str]:
    """The files of an archive, without its top folder, which is named after it."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    else:
        with tarfile.open(path) as archive:
            names = archive.getnames()
    assert {name.split("/")[0] for name in names} == {path.name.split(".")[0]}
    return sorted(name.partition("/")[2] for name in names)


@pytest.mark.parametrize("name", ["llm.tar.gz", "llm.zip"])
def test_the_archive_holds_nothing_of_the_instructors(course, tmp_path, name):
    made = bundle(course, tmp_path / name)
    assert (made.count, made.left_out) == (len(SHARED) + 1, ())
    assert inside(tmp_path / name) == sorted([*SHARED, CONFIG])


def test_without_git_private_names_are_left_out_and_named(course, tmp_path):
    private = [f"{folder}/{name}" for folder in ("book", "tools") for name in PRIVATE_NAMES]
    for name in private:
        (course / name).parent.mkdir(exist_ok=True)
        (course / name).write_text("x")
    assert bundle(course, tmp_path / "llm.zip").left_out == tuple(sorted(private))
    assert inside(tmp_path / "llm.zip") == sorted([*SHARED, CONFIG])


def test_a_hard_link_to_a_private_file_stops_it(course, tmp_path):
    (course / "course_pkg" / "x.py").hardlink_to(course / ".grading" / "secret")
    with pytest.raises(ReleaseError, match=r"course_pkg/x\.py is a hard link"):
        bundle(course, tmp_path / "llm.zip")


def test_the_built_book_is_in_it_on_demand(course, tmp_path):
    with pytest.raises(ReleaseError, match="run `make book`"):
        bundle(course, tmp_path / "llm.zip", site=True)
    (course / "_build" / "html" / "index.html").write_text("")
    assert bundle(course, tmp_path / "llm.zip", site=True).count == len(SHARED) + 3
    assert "_build/html/index.html" in inside(tmp_path / "llm.zip")


ADDRESSES = [  # lines of a file, and whether one shows a secret
    ("--index-url https://ada:sesame@pypi.example/simple", True),
    ("# --extra-index-url https://t0ken@pypi.example/simple", True),
    ("--index-url https://${TOKEN}@pypi.example/simple", False),
    ("--index-url https://ada:${PASSWORD}@pypi.example/simple", False),
    ("# postgresql://grader:sesame@db.example/course", True),
    ("# postgresql://grader@db.example:5432/course", False),
    ("# https://db.example/course?user=grader&password=sesame", True),
    ("--index-url https://pypi.example/simple", False),
    ("numpy==2.0  # https://example.org/@numpy", False),
]


def test_an_address_with_a_password_in_a_top_file_stops_it(course, tmp_path):
    path = course / "requirements.txt"
    for line, stops in ADDRESSES:
        path.write_text(f"torch\n{line}\n")
        assert lines_with_addresses(path) == ([2] if stops else []), line
    path.write_text(ADDRESSES[0][0])
    with pytest.raises(ReleaseError, match=r"requirements\.txt, line 1: an address with a user"):
        bundle(course, tmp_path / "x.zip")


def test_with_git_only_tracked_files_are_in_it(course):
    (course / "book").mkdir()
    (course / "book" / "notes-to-myself.md").write_text("not tracked")
    (course / "exercises" / "new").mkdir()
    (course / "exercises" / "new" / "new.ipynb").write_text("{}")
    assert "book/notes-to-myself.md" in files(course)[0]
    subprocess.run(["git", "init", "-q"], cwd=course, check=True)
    subprocess.run(["git", "add", *SHARED, "solutions"], cwd=course, check=True)
    shown, left_out = files(course)
    assert sorted(shown) == sorted(SHARED)
    assert {"book/notes-to-myself.md", "exercises/new/new.ipynb"} <= set(left_out)


@pytest.mark.parametrize("answer", ["### BEGIN SOLUTION", "### BEGIN HIDDEN TESTS"])
def test_an_answer_in_the_exercises_stops_it(course, tmp_path, answer):
    (course / "exercises" / "a" / "a.ipynb").write_text(answer)
    with pytest.raises(ReleaseError, match=answer):
        bundle(course, tmp_path / "llm.zip")
    assert not (tmp_path / "llm.zip").exists()


def test_students_get_an_example_of_the_configuration_and_not_the_instructors_own(course, tmp_path):
    (course / CONFIG).write_text("c.X.db_url = 'postgresql://grader:sesame@db.example/course'\n")
    assert bundle(course, tmp_path / "llm.zip").count == len(SHARED) + 1
    with zipfile.ZipFile(tmp_path / "llm.zip") as archive:
        text = archive.read(f"llm/{CONFIG}").decode()
    assert "sesame" not in text and 'release_directory = "exercises"' in text


MISTYPED = [
    "###  BEGIN SOLUTION",
    "## BEGIN SOLUTION",
    "### begin solution",
    "###BEGIN SOLUTION",
    "### BEGIN-SOLUTION",
    "### BEGIN SOLUTON",
    "### END  SOLUTION",
    "### START SOLUTION: x",
    "### BEGIN HIDDEN TEST",
    "### Begin hidden_tests",
    "== BEGIN MARK SCHEME ==",
    "###\u00a0BEGIN SOLUTION",
    "\uff03## BEGIN SOLUTION",
    "### SOLUTION BEGIN",
    "# --- solution begins ---",
    "### HIDDEN TESTS START",
    "### BEGIN THE SOLUTION",
    "### Beginning of solution",
    "return x  ### BEGIN  SOLUTION",
    "### BEGIN ANSWER",
    "### BEGIN SOLN",
    "### BGEIN SOLUTOIN",
    "### BEGIN S\u041eLUTI\u041eN",
    "### BEGIN HIDDEN SOLUTION",
]


def test_a_line_that_looks_like_a_mark_is_a_mistyped_one():
    assert [mark for mark in MISTYPED if not mistyped(mark)] == []


def test_a_mistyped_mark_stops_bundle_and_release_at_its_cell_and_line(course, tmp_path):
    cells = [{"source": ["x = 1\n"]}, {"source": ["def f():\n", f"    {MISTYPED[0]}\n"]}]
    for folder in ("solutions", "exercises"):
        (course / folder / "a" / "a.ipynb").write_text(json.dumps({"cells": cells}))
    with pytest.raises(ReleaseError, match=r"exercises/a/a\.ipynb, cell 2, line 2"):
        bundle(course, tmp_path / "x.zip")
    with pytest.raises(ReleaseError, match=r"solutions/a/a\.ipynb, cell 2, line 2.*recognize"):
        release_assignment(course, "a")


OTHER_LINES = [
    "### BEGIN SOLUTION",
    "# the solution begins here",
    "end = 1",
    "# hidden tests",
    "Begin with the solution of (1).",
    "### Solution",
    "### The solution",
    "* End answers with a full stop.",
    "# start answering",
    "[see](#end-of-solution)",
]


def test_other_lines_are_no_mistyped_marks():
    assert [line for line in OTHER_LINES if mistyped(line)] == []


def test_long_rows_of_signs_are_no_marks_and_do_not_hang():
    assert not any(mistyped(signs) for signs in (400_000 * "#", 5_000 * "# ", 400_000 * "-"))


@pytest.mark.parametrize("cells", ["[1]", "1", '[{"source": 1}]', '[{"source": [1]}]'])
def test_a_broken_notebook_is_read_as_text(course, tmp_path, cells):
    broken = f'{{"cells": {cells},\n"text": "### BEGIN SOLUTION"}}'
    (course / "exercises" / "a" / "a.ipynb").write_text(broken)
    with pytest.raises(ReleaseError, match=r"exercises/a/a\.ipynb, line 2"):
        bundle(course, tmp_path / "x.zip")


def test_every_file_of_the_repository_is_for_students_or_for_instructors():
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("there is no git repository here")
    assert {line.split("/")[0] for line in done.stdout.splitlines()} == SHOWN | INSTRUCTORS


def test_git_ignores_rosters_and_archives_of_a_class():
    names = ["roster.csv", "roster-2026.csv", "grading-worksheet.csv", "class.zip", "a.tar.gz"]
    command = ["git", "check-ignore", "--no-index", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 128:
        pytest.skip("there is no git repository here")
    assert done.stdout.split() == names


def test_make_in_the_students_copy_releases_and_grades_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, ["bundle", str(tmp_path / "llm.tar.gz")])
    assert done.exit_code == 0, done.output
    with tarfile.open(tmp_path / "llm.tar.gz") as archive:
        archive.extractall(tmp_path)
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # `make test` passes them on
        monkeypatch.delenv(name, raising=False)
    run = {"cwd": tmp_path / "llm", "capture_output": True, "text": True, "check": True}
    assert subprocess.run(["make", "grade", "release"], **run).stdout.splitlines() == [
        "grade    skipped: there is no solutions/ here",
        "release  skipped: there is no solutions/ here",
    ]
    would = subprocess.run(["make", "-n"], **run).stdout
    assert "tools/build-book .venv/bin/jupyter-book" in would
    assert "course release" not in would and "sample-class" not in would
    said = subprocess.run(["tools/summary", "site", "class"], **run).stdout
    assert "grading    skipped: there is no solutions/ here" in said
