"""The Makefile and the programs in tools/ that it calls."""

import os
import pty
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def make(*arguments: str, folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess:
    """Run make in a folder, as a new shell would."""
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL")}
    command = ["make", "--no-print-directory", "-C", str(folder), *arguments]
    command += [f"{name}={value}" for name, value in variables.items()]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def targets() -> set[str]:
    """Targets of the Makefile with an explanation, which are those for users."""
    return set(re.findall(r"^(\w+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def test_make_help_lists_every_target():
    out = make("help").stdout
    assert {"setup", "book", "release", "grade", "lab", "bench", "test", "clean"} <= targets()
    assert set(re.findall(r"^make (\w+)", out, re.MULTILINE)) == targets() - {"all"}
    assert re.search(r"^make  +set up, build the book", out, re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "book/setup.md"])
def test_every_make_command_that_a_page_names_exists(page):
    text = (ROOT / page).read_text("utf-8")
    named = set(re.findall(r"(?:^|`)(?:\w+=\S+ )?make ([a-z]+)", text, re.MULTILINE))
    assert named <= targets()


def test_every_file_that_the_readme_links_to_exists():
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text("utf-8"))
    assert links and [link for link in links if not (ROOT / link).exists()] == []


def copy_of_the_makefile(folder: Path) -> Path:
    """The Makefile and its helpers alone, in another folder."""
    folder.mkdir(parents=True)
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / "tools").symlink_to(ROOT / "tools")
    return folder


def test_a_path_with_a_space_gives_one_clear_error(tmp_path):
    done = make("help", folder=copy_of_the_makefile(tmp_path / "my course"))
    assert done.returncode != 0 and "has a space in it" in done.stderr


FAKE_PYTHON = """#!/bin/sh
case "$*" in
  *ensurepip*) exit {ensurepip} ;;
  *'not (3, 11)'*) exit {too_old} ;;
  *'%d.%d'*) echo 3.11 ;;
  *executable*) echo "/fake/python (3.9.2)" ;;
esac
"""


@pytest.mark.parametrize(
    ("ensurepip", "too_old", "said"),
    [
        (1, 0, "sudo apt-get install python3.11-venv"),
        (0, 1, "Python 3.11, 3.12 or 3.13 is needed; found /fake/python (3.9.2)"),
    ],
)
def test_an_unsupported_python_is_reported_with_the_fix(tmp_path, ensurepip, too_old, said):
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON.format(ensurepip=ensurepip, too_old=too_old))
    python.chmod(0o755)
    done = make("setup", folder=copy_of_the_makefile(tmp_path / "course"), PYTHON=str(python))
    complaint = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert done.returncode != 0
    assert len(complaint) == 1 and said in complaint[0]


FAKE_VENV = {
    "python": """#!/bin/sh
case "$*" in
  *cached_folder*) echo "$PWD/model" ;;
esac
""",
    "jupyter-book": """#!/bin/sh
echo "options: $*"
mkdir -p _build/html
echo page >_build/html/index.html
cat said-by-the-build 2>/dev/null
exit $(cat exit-of-the-build)
""",
    "course": """#!/bin/sh
case "$1" in
  release) mkdir -p exercises/$2; echo released >exercises/$2/$2.ipynb ;;
  sample-class) mkdir -p _build/class; echo name,score >_build/class/grades.csv ;;
esac
""",
}


SOURCES = ("solutions/bleu/bleu.ipynb", "book/index.md", "course_pkg/lm/load.py")
SOURCES += ("_config.yml", "_toc.yml", "nbgrader_config.py")


def small_course(folder: Path, build_says: str, build_exit: int) -> Path:
    """A course whose environment is made of scripts: a book that may fail, and one assignment."""
    copy_of_the_makefile(folder)
    files = {
        ".venv/.place": f"{folder}\n",
        "model/manifest.json": "{}",
        "said-by-the-build": build_says,
        "exit-of-the-build": str(build_exit),
    }
    files |= {f".venv/bin/{name}": script for name, script in FAKE_VENV.items()}
    files |= dict.fromkeys(SOURCES, "text\n")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in FAKE_VENV:
        (folder / ".venv/bin" / name).chmod(0o755)
    return folder


# As Sphinx writes a warning, in color.
FAILED = "\033[91mWARNING: PAGE FAILED book/a/b: cell 3: ValueError: the reason\033[39;49;00m\n"
WARNED = "\033[91mWARNING: PAGE WARNING book/a/c: cell 4: stderr: a library logged\033[39;49;00m\n"


@pytest.mark.parametrize(
    ("says", "code", "status", "named"),
    [
        ("all is well\n", 0, 0, "Done."),
        (WARNED, 0, 0, "book/a/c: cell 4"),
        (FAILED, 0, 2, "book/a/b: cell 3: ValueError: the reason"),
        ("an extension raised\n", 1, 2, "Finished, but not everything"),
    ],
)
def test_a_book_that_fails_stops_neither_the_exercises_nor_the_class(
    tmp_path, says, code, status, named
):
    course = small_course(tmp_path / "course", says, code)
    doctrees = course / "_build" / ".doctrees"
    doctrees.mkdir(parents=True)
    done = make(folder=course)
    assert done.returncode == status, done.stdout + done.stderr
    assert (course / "exercises/bleu/bleu.ipynb").is_file()
    assert "_build/class/grades.csv" in done.stdout
    summary = done.stdout[done.stdout.rindex("\n\n") :]
    assert named in summary and ("Done." in summary) == (status == 0)
    assert "\033" not in summary
    # Without them Sphinx reads every page again, and so runs the one that failed.
    assert doctrees.exists() == (status == 0)


def test_a_page_that_failed_is_built_again_and_one_with_warnings_is_not(tmp_path):
    course = small_course(tmp_path / "course", FAILED, 0)
    assert make("book", folder=course).returncode == 2
    (course / "said-by-the-build").write_text(WARNED)
    assert "html/index.html" in make("book", folder=course).stdout
    said = make("book", folder=course, STRICT="1").stdout.splitlines()
    assert said[-1] == "book     _build/html/index.html" and said[0].startswith("labs     skipped")


def test_warnings_are_errors_only_if_asked_for(tmp_path):
    course = small_course(tmp_path / "course", "", 0)
    for strict, expected in (("", "build . --keep-going"), ("1", "build . --keep-going -W -n")):
        (course / "_build/html/index.html").unlink(missing_ok=True)
        assert make("book", folder=course, STRICT=strict).returncode == 0
        log = (course / "_build/logs/book.log").read_text()
        assert log.splitlines()[0] == f"options: {expected}"


def test_make_prints_the_progress_of_the_book_and_only_the_ends_of_what_runs_beside_it(tmp_path):
    course = small_course(tmp_path / "course", "", 0)
    (course / "tools").unlink()
    shutil.copytree(ROOT / "tools", course / "tools")
    seen = course / "steps"
    (course / "tools/step").write_text(f'#!/bin/sh\necho "$1${{STEP_BRIEF:+ brief}}" >>{seen}\n')
    make(folder=course)
    kinds = set(seen.read_text().splitlines())
    assert {"book", "release brief", "grade brief"} <= kinds
    seen.unlink()
    make("grade", folder=course)
    assert "grade" in seen.read_text().splitlines()


def step(folder: Path, script: str, stdout: int = subprocess.PIPE, **variables: str):
    """Run a shell script as a step of the Makefile."""
    command = [str(ROOT / "tools" / "step"), "demo", "the result", "do this", "sh", "-c", script]
    env = os.environ | {"STEP_LOGS": str(folder)} | variables
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=env)


def test_a_successful_step_prints_one_line_and_logs_its_output(tmp_path):
    done = step(tmp_path, "echo quiet; echo aside >&2")
    assert re.fullmatch(r"demo +the result +\d+ s\n", done.stdout)
    assert done.returncode == 0 and done.stderr == ""
    assert (tmp_path / "demo.log").read_text() == "quiet\naside\n"


@pytest.mark.parametrize(("brief", "shown"), [("", True), ("1", False)])
def test_on_a_terminal_a_step_shows_its_last_line_unless_it_is_brief(tmp_path, brief, shown):
    master, terminal = pty.openpty()
    done = step(tmp_path, "echo at work; sleep 1.5", stdout=terminal, STEP_BRIEF=brief, TERM="dumb")
    os.close(terminal)
    os.set_blocking(master, False)
    said = ""
    with suppress(OSError):  # at the end of what was written
        while part := os.read(master, 10_000):
            said += part.decode()
    os.close(master)
    assert done.returncode == 0 and "the result" in said
    assert ("at work" in said) == shown


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("anything else", "demo: do this"),
        ("OSError: [Errno 28] No space left on device", "demo: the disk is full ("),
        ("ERROR: No matching distribution found for foo==1.0", "demo: pip finds foo==1.0 neither"),
        ("Temporary failure in name resolution", "demo: the package index did not answer"),
        ("nbclient.exceptions.DeadKernelError: Kernel died", "demo: probably out of memory"),
        ("Error: no bwrap: apt-get install bubblewrap", "demo: Error: no bwrap: apt-get install"),
        ("ModuleNotFoundError: No module named 'yaml'", "demo: the Python package 'yaml' is"),
    ],
)
def test_a_failed_step_ends_with_one_line_that_has_the_fix(tmp_path, output, said):
    done = step(tmp_path, f"echo before; echo {output!r}; exit 3")
    assert done.returncode == 3
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1
    assert "before" in done.stdout and "demo.log" in done.stdout


@pytest.mark.parametrize(
    ("script", "said"),
    [
        # A library may log a missing optional package, or an earlier failure, and go on.
        ("echo \"bitsandbytes: no module named 'kernels', using the default\"", "do this"),
        ("echo 'No space left on device'; seq 50", "do this"),
        (f"echo '{FAILED.strip()}'; seq 50", "could not be run to their end: book/a/b; do this"),
    ],
)
def test_a_harmless_message_is_not_named_as_the_cause_and_failed_pages_are(tmp_path, script, said):
    assert step(tmp_path, f"{script}; exit 3").stderr == f"demo: {said}\n"


@pytest.mark.parametrize("graded", [True, False])
def test_the_summary_lists_the_results_or_says_why_there_are_no_grades(tmp_path, graded):
    files = {"_build/logs/grade.log": "grading needs Linux\n", "site/index.html": "", "class/x": ""}
    if graded:
        files["class/grades.csv"] = "student,score\n"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [str(ROOT / "tools" / "summary"), "site/index.html", "class", "0"]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "site/index.html" in out
    assert ("class/grades.csv" in out and "class/feedback" in out) is graded
    assert ("skipped: grading needs Linux" in out) is not graded
