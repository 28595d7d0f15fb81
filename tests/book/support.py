"""What the book's tests share: paths, a page header, and a build."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = ROOT / "book" / "_ext"

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


def try_to_build(folder: Path) -> subprocess.CompletedProcess:
    """Build the book in a folder, warnings being errors."""
    program = "from jupyter_book.cli.main import main; main()"
    return run(folder, "-c", program, "build", ".", "-W", "-n", "--keep-going")


def build(folder: Path) -> str:
    """Build the book in a folder; return what the build said."""
    done = try_to_build(folder)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr
