"""Killed at any moment of writing a checkpoint, a run resumes as if nothing had happened."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPT = "tests.finetuning.killed_run"


@pytest.mark.slow
@pytest.mark.parametrize(
    "stride", [170, pytest.param(11, marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)])]
)
def test_a_killed_run_resumes_bit_for_bit_with_both_files(tmp_path, stride):
    subprocess.run([sys.executable, "-m", SCRIPT, tmp_path, str(stride)], check=True, cwd=ROOT)
    found = torch.load(tmp_path / "results.pt", weights_only=True)
    whole, *resumed = found["results"]
    assert (len(whole["losses"]), whole["best"], whole["stopped_early"]) == (3, 2, True)
    assert len(resumed) == len(range(1, found["lines"], stride)) >= 6
    names = {name for run in resumed for name in run.pop("left")}
    assert {"last.pt", "best.pt"} <= names and any(name.endswith(".part") for name in names)
    for run in resumed:
        assert equal(run, whole)
    assert whole["names"] == ["best.pt", "last.pt"], "nothing unfinished is left"
    assert equal(whole["weights"], whole["files"]["best.pt"]), "restored at the end"
    assert not equal(whole["weights"], whole["files"]["last.pt"])


def equal(one, other):
    """Whether two results are equal to the last bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
