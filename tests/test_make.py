"""The Makefile and the programs in tools/ that it calls."""

import os
import re
import subprocess
from pathlib import Path

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


def test_every_make_command_that_a_page_names_and_every_file_of_the_readme_exists():
    for page in ("README.md", "CONTRIBUTING.md", "book/setup.md"):
        text = (ROOT / page).read_text("utf-8")
        named = set(re.findall(r"(?:^|`)(?:\w+=\S+ )?make ([a-z]+)", text, re.MULTILINE))
        assert named <= targets(), page
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


def test_an_unsupported_python_is_reported_with_the_fix(tmp_path):
    course = copy_of_the_makefile(tmp_path / "course")
    python = tmp_path / "python"
    for ensurepip, too_old, said in (
        (1, 0, "sudo apt-get install python3.11-venv"),
        (0, 1, "Python 3.11, 3.12 or 3.13 is needed; found /fake/python (3.9.2)"),
    ):
        python.write_text(FAKE_PYTHON.format(ensurepip=ensurepip, too_old=too_old))
        python.chmod(0o755)
        done = make("setup", folder=course, PYTHON=str(python))
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


def test_a_book_that_fails_stops_nothing_else_and_is_built_again(tmp_path):
    course = small_course(tmp_path / "course", "", 0)
    doctrees = course / "_build" / ".doctrees"
    options = "build . --keep-going"
    for says, code, status, named, strict in (
        ("an extension raised\n", 1, 2, "Finished, but not everything", ""),
        (FAILED, 0, 2, "book/a/b: cell 3: ValueError: the reason", "1"),
        (WARNED, 0, 0, "book/a/c: cell 4", ""),
    ):
        (course / "said-by-the-build").write_text(says)
        (course / "exit-of-the-build").write_text(str(code))
        doctrees.mkdir(parents=True, exist_ok=True)
        done = make(folder=course, STRICT=strict)
        assert done.returncode == status, done.stdout + done.stderr
        log = (course / "_build/logs/book.log").read_text()
        assert log.splitlines()[0] == f"options: {options}{' -W -n' if strict else ''}"
        assert (course / "exercises/bleu/bleu.ipynb").is_file()
        assert "_build/class/grades.csv" in done.stdout
        summary = done.stdout[done.stdout.rindex("\n\n") :]
        assert named in summary and ("Done." in summary) == (status == 0)
        assert "\033" not in summary
        # Without them Sphinx reads every page again, and so runs the one that failed.
        assert doctrees.exists() == (status == 0)
    said = make("book", folder=course).stdout.splitlines()  # a warning is no reason to build again
    assert said[-1] == "book     _build/html/index.html" and said[0].startswith("labs     skipped")


def step(folder: Path, script: str, **variables: str) -> subprocess.CompletedProcess:
    command = [str(ROOT / "tools" / "step"), "demo", "the result", "do this", "sh", "-c", script]
    env = os.environ | {"STEP_LOGS": str(folder)} | variables
    return subprocess.run(command, capture_output=True, text=True, env=env)


def test_a_successful_step_prints_one_line_and_logs_its_output(tmp_path):
    done = step(tmp_path, "echo quiet; echo aside >&2")
    assert re.fullmatch(r"demo +the result +\d+ s\n", done.stdout)
    assert done.returncode == 0 and done.stderr == ""
    assert (tmp_path / "demo.log").read_text() == "quiet\naside\n"


def test_parts_that_end_are_shown_once_and_what_a_step_took_is_kept(tmp_path):
    plan = tmp_path / "plan"
    done = step(tmp_path, "echo PART 75 pages read; echo PART 2 more", COURSE_PLAN=str(plan))
    shown = re.findall(r"^demo +(\w.*?)  +(.*)$", done.stdout, re.MULTILINE)
    assert shown[:2] == [("pages read", "1 min 15 s"), ("more", "2 s")] and len(shown) == 3
    assert re.fullmatch(r"\d+ demo\n", (tmp_path / "costs").read_text())
    assert re.fullmatch(r"\d+ demo\n", (tmp_path / "plan.done").read_text())


def test_a_failed_step_ends_with_one_line_that_has_the_fix(tmp_path):
    for output, said in (
        ("anything else", "do this"),
        ("OSError: [Errno 28] No space left on device", "the disk is full ("),
        ("ERROR: No matching distribution found for foo==1.0", "pip finds foo==1.0 neither"),
        ("Temporary failure in name resolution", "the package index did not answer"),
        ("nbclient.exceptions.DeadKernelError: Kernel died", "probably out of memory"),
        ("Error: no bwrap: apt-get install bubblewrap", "Error: no bwrap: apt-get install"),
        ("ModuleNotFoundError: No module named 'yaml'", "the Python package 'yaml' is"),
        # A library may log a missing optional package, or an earlier failure, and go on.
        ("bitsandbytes: no module named 'kernels', using the default", "do this"),
        ("No space left on device\n" + "1\n" * 50, "do this"),
        (f"{FAILED}" + "1\n" * 50, "could not be run to their end: book/a/b; do this"),
    ):
        (tmp_path / "output").write_text(output)
        done = step(tmp_path, f"echo before; cat {tmp_path}/output; exit 3")
        assert done.returncode == 3
        assert done.stderr.startswith(f"demo: {said}") and done.stderr.count("\n") == 1
        assert output.splitlines()[-1] in done.stdout and "demo.log" in done.stdout
