"""The page appendix/at-scale: each command that it shows exists, with its options."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from distributed.cli import dask_scheduler, dask_worker
from nbgrader.apps.nbgraderapp import NbGraderApp

from course_pkg.cli import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "book/appendix/at-scale.md").read_text()
DASK = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}
COURSE = typer.main.get_command(app).commands


def shown() -> list[str]:
    """The command lines of the page, and those in its sentences, without comments."""
    blocks = re.findall(r"^ *```bash\n(.*?)^ *```$", PAGE, re.DOTALL | re.MULTILINE)
    inline = re.findall(r"`((?:course|nbgrader) [^`]+?)`", PAGE.replace("\n", " "))
    joined = [re.sub(r"\\\n\s*", "", block) for block in blocks]
    lines = [line for block in joined for line in block.splitlines()] + inline
    bare = (re.sub(r"(^|\s+)(#.*|>.*|&)$", "", line).strip() for line in lines)
    return [line for line in dict.fromkeys(bare) if line]


def parsed(line: str) -> None:
    """Raise what the command itself would say about the line."""
    program, *words = shlex.split(line.removeprefix("srun --partition short .venv/bin/"))
    if program == "course" and len(words) == 1:  # a sentence names the command
        assert words[0] in COURSE
    elif program == "course":
        COURSE[words[0]].make_context(words[0], words[1:])
    elif program == "dask":
        DASK[words[0]].make_context(words[0], words[1:])
    elif program == "nbgrader":
        command, _ = NbGraderApp.subcommands[words[0]]
        known = {f"--{name}" for name in (*command().flags, *command().aliases)}
        assert {word for word in words if word.startswith("--")} <= known
    elif program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "python":
        script = [sys.executable, str(ROOT / words[0]), "--help"]
        help_text = subprocess.run(script, capture_output=True, text=True, check=True).stdout
        assert {word for word in words if word.startswith("--")} <= set(
            re.findall(r"--[a-z-]+", help_text)
        )
    else:
        assert program in ("kubectl", ".venv/bin/pip", "deploy/certificates.sh")


@pytest.fixture
def in_a_course(tmp_path, monkeypatch):
    """The certificates that the commands name."""
    for name in ("ca", "cert", "key"):
        path = tmp_path / "tls" / f"{name}.pem"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)


def test_each_command_of_the_page_exists_with_its_options(in_a_course):
    assert len(shown()) > 20
    for line in shown():
        parsed(line)  # raises an error that names what is wrong
    with pytest.raises(Exception, match="No such option"):
        parsed("course grade a --shceduler x:1")


def test_the_files_that_the_page_names_are_there_and_all_are_named():
    named = set(re.findall(r"deploy/[a-z_]+\.[a-z]+", PAGE))
    there = {f"deploy/{path.name}" for path in (ROOT / "deploy").glob("*.*")}
    assert named == there - {"deploy/started.py"}
