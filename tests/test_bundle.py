"""`course bundle`, and `make` in the students' copy that it writes."""

import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.grading.classroom.bundle import SHOWN, bundle, files
from course_pkg.grading.classroom.config_passwords import (
    lines_with_addresses,
    lines_with_passwords,
    passwords,
)
from course_pkg.grading.classroom.release import ReleaseError, mistyped, release_assignment

ROOT = Path(__file__).parents[1]
INSTRUCTORS = {".ci", ".github", "deploy", "runner", "solutions", "tests"}
SHARED = ["Makefile", "course_pkg/checks.py", "exercises/a/a.ipynb", "nbgrader_config.py"]
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
    assert (made.count, made.left_out) == (len(SHARED), ())
    assert inside(tmp_path / name) == sorted(SHARED)


def test_without_git_private_names_are_left_out_and_named(course, tmp_path):
    private = [f"{folder}/{name}" for folder in ("book", "tools") for name in PRIVATE_NAMES]
    for name in private:
        (course / name).parent.mkdir(exist_ok=True)
        (course / name).write_text("x")
    assert bundle(course, tmp_path / "llm.zip").left_out == tuple(sorted(private))
    assert inside(tmp_path / "llm.zip") == sorted(SHARED)


def test_a_hard_link_to_a_private_file_stops_it(course, tmp_path):
    (course / "course_pkg" / "x.py").hardlink_to(course / ".grading" / "secret")
    with pytest.raises(ReleaseError, match=r"course_pkg/x\.py is a hard link"):
        bundle(course, tmp_path / "llm.zip")


def test_the_built_book_is_in_it_on_demand(course, tmp_path):
    with pytest.raises(ReleaseError, match="run `make book`"):
        bundle(course, tmp_path / "llm.zip", site=True)
    (course / "_build" / "html" / "index.html").write_text("")
    assert bundle(course, tmp_path / "llm.zip", site=True).count == len(SHARED) + 2
    assert "_build/html/index.html" in inside(tmp_path / "llm.zip")


ADDRESSES = [  # lines of a file, and whether one shows a secret
    ("--index-url https://ada:sesame@pypi.example/simple", True),
    ("# --extra-index-url https://t0ken@pypi.example/simple", True),
    ("--index-url https://${TOKEN}@pypi.example/simple", False),
    ("--index-url https://ada:${PASSWORD}@pypi.example/simple", False),
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


CONFIGURATIONS = [  # and whether they hold a password
    ("c.X.db_url = 'postgresql+psycopg://grader:sesame@db.example/course'", True),
    ("c.X.db_url = 'postgresql+psycopg://grader@db.example:5432/course'", False),
    ("c.X.db_url = 'postgresql://db.example/course?user=grader&password=sesame'", True),
    ("c.X.db_url = 'sqlite:////srv/course/gradebook.db'", False),
    ("c.X.db_url = 'postgresql://g:P/W@db'", True),
    ("c.X.db_url = 'postgresql://g:' + 'sesame' + '@db/x'", True),
    ("from sqlalchemy import URL\nc.X.db_url = URL.create('postgresql', 'g', 'sesame')", True),
    ("import os\nc.X.db_url = os.getenv('DB', 'postgresql:' + '//g:sesame@d')", True),
    ("import os\nc.X.db_url = os.environ['DB']", False),
    ("import os\nc.X.db_url = f\"postgresql://g:{os.environ['DB']}@d\"", False),
    ("c.X.urls = {'a': ['postgresql://g:' + 'sesame@d']}", True),
    ("c.X.api_token = 'ses' + 'ame'", True),
    ("# postgresql://g:P/W@db", True),
    ("# PASSWORD = 'sesame'", True),
    ("# a course of mine\n# c.X.db_url = ('postgresql://g:'\n#     'sesame@d')", True),
    ("c.X.url = b'postgresql://g:' + b'sesame@d'", True),
    ("c.X.urls.append('postgresql://g:' + 'sesame@d')", True),
    ("c.X.dsn = 'host=db user=g password=sesame'", True),
    ("c.X.url = 'mssql+pyodbc:///?odbc_connect=UID%3Dg%3BPWD%3Dsesame'", True),
    ("import os\nc.X.dsn = f\"host=db password={os.environ['DB']}\"", False),
    ("import os\nos.environ['PGPASSWORD'] = 'ses' + 'ame'", True),
    ("import os\nos.environ.update(PGPASSWORD='sesame')", True),
    ("import os\nos.environ['PGUSER'] = 'grader'", False),
    ("import sys\nsys.stdout.buffer.write(b'\\xff')", False),
    ("import atexit\natexit.register(print, end='bye')", False),
]


def test_passwords_are_found_in_the_values_of_the_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("DB", "postgresql://g:from-the-shell@d")
    config = tmp_path / "nbgrader_config.py"
    for text, stops in CONFIGURATIONS:
        config.write_text(f"c = get_config()\n{text}\n")
        assert bool(passwords(config)) == stops, text


def test_a_password_in_the_configuration_stops_it(course, tmp_path):
    (course / "nbgrader_config.py").write_text(f"c = get_config()\n{CONFIGURATIONS[0][0]}\n")
    with pytest.raises(ReleaseError, match=r"a password to students: move it from .*pgpass"):
        bundle(course, tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()


CODE = [  # and whether it holds a password
    ("c.X.db_url = 'postgresql://g:' + 'sesame@d'", True),
    ("word = 'sesame'; c.X.db_url = f'postgresql://g:{word}@d'", True),
    ("c.X.db_url = URL.create('postgresql', username='g', password='sesame')", True),
    ("c.X.db_url = sqlalchemy.URL.create('postgresql', 'g', 'sesame', 'd')", True),
    ("os.putenv('PGPASSWORD', 'sesame')", True),
    ("c.X.connect_args = {'password': 'sesame'}", True),
    ("c.X.password: str = 'sesame'", True),
    ("c.X.db_url = f\"postgresql://g:{os.environ['DB']}@d\"", False),
    ("c.X.db_url = URL.create('postgresql', 'g', os.environ['DB'], 'd')", False),
    ("c.X.password = None", False),
    ("c.X.password = open('/etc/db').read()", False),
]


def test_a_password_in_code_that_does_not_run_is_found_at_its_line():
    for code, stops in CODE:
        unused = f"if os.environ.get('DB'):\n    {code}"
        assert lines_with_passwords(unused) == ([2] if stops else []), code
        assert lines_with_passwords(f"# {code}") == ([1] if stops else []), code


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import os; os._exit(0)", "it ends before all of it has run"),
        ("import sys; sys.stderr.buffer.write(b'\\xff\\n'); 1 / 0", "ZeroDivisionError"),
        ("import os; int(os.environ['PORT'])", "ValueError.*without your environment variables"),
    ],
)
def test_a_configuration_that_fails_stops_it_and_says_why(course, tmp_path, code, why):
    (course / "nbgrader_config.py").write_text(code)
    with pytest.raises(ReleaseError, match=rf"can't be run: {why}"):
        bundle(course, tmp_path / "x.zip")


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
