"""xgrammar, llguidance and outlines-core still do what the record of `constrained_parity` says.

It runs by hand, since they aren't in the lock. Install them into a folder, and name it:

    python -m pip install --no-deps --target DIR xgrammar==0.2.8 apache-tvm-ffi \\
        llguidance==1.9.1 outlines-core==0.2.14
    COURSE_CONSTRAINED=DIR python -m pytest benchmarks/test_constrained_parity.py
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RECORD = json.loads((ROOT / "course_pkg/data/constrained/parity.json").read_text("utf-8"))
OTHERS = ("xgrammar", "llguidance", "outlines-core")


def run_judge():
    """A new record without times. Skips, and says why, where the libraries aren't installed."""
    folder = os.environ.get("COURSE_CONSTRAINED")
    if not folder:
        pytest.skip(
            "COURSE_CONSTRAINED names no folder: this file's first lines say how to make it"
        )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([folder, str(ROOT)])}
    command = [sys.executable, str(ROOT / "benchmarks/constrained_parity.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.model
def test_the_libraries_still_do_what_the_record_says():
    record = run_judge()
    for name in OTHERS:
        if record["versions"][name] != RECORD["versions"][name]:
            pytest.skip(f"{name} {record['versions'][name]}, recorded {RECORD['versions'][name]}")
    for part in ("masks", "texts", "trimming", "after_the_end"):
        assert record[part] == RECORD[part]
