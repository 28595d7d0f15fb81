"""What the book's tests share: paths, a page header, and a build."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = ROOT / "book" / "_ext"
EXPERIMENTS = ROOT / "book" / "experiments"
sys.path.insert(0, str(EXPERIMENTS))  # where the scripts import each other from
import rate_ladder  # noqa: E402, F401
import record as recording  # noqa: E402, F401

CELL = re.compile(r"^```\{code-cell\}.*?^```\s*$", re.MULTILINE | re.DOTALL)

HEADER = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  name: python3
  display_name: Python 3
---
"""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess:
    """Run a Python program in a folder, whose own course_pkg comes first."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "JUPYTER_PREFER_ENV_PATH": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True
    )


def try_to_build(folder: Path, *options: str) -> subprocess.CompletedProcess:
    """Build the book in a folder; with the option -W, warnings are errors."""
    program = "from jupyter_book.cli.main import main; main()"
    return run(folder, "-c", program, "build", ".", "-n", "--keep-going", *options)


def build(folder: Path, *options: str) -> str:
    """Build the book in a folder; return what the build said."""
    done = try_to_build(folder, *options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr
