"""Killed at any moment of writing a checkpoint, a run resumes as if nothing had happened.

    python -m tests.finetuning.test_killed FOLDER STRIDE

The Python lines of the writing are counted. For every STRIDE-th of them, a process trains in a
folder of its own until it kills itself at this line; another one resumes there, or starts again if
the first one has not finished a checkpoint. `results.pt` has what each of the latter returned,
first that of an uninterrupted run.
"""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from course_pkg.finetuning.trainer import mean_loss, train

from .runs import adapted, config, weights

ROOT = Path(__file__).parents[2]
WRITING = ("finetuning/checkpoint.py", "course_pkg/files.py", "torch/serialization.py:_save")
# Step 2 is the best, and step 3 the last.
CONFIG = config(5, learning_rate=0.3, evaluate_every=1, checkpoint_every=1, patience=1)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "stride",
    [170, pytest.param(11, marks=[pytest.mark.minutes, pytest.mark.timeout(900)])],
)
def test_a_killed_run_resumes_bit_for_bit_with_both_files(tmp_path, stride):
    subprocess.run([sys.executable, "-m", __name__, tmp_path, str(stride)], check=True, cwd=ROOT)
    found = torch.load(tmp_path / "results.pt", weights_only=True)
    whole, *resumed = found["results"]
    assert (len(whole["losses"]), whole["best"], whole["stopped_early"]) == (3, 2, True)
    assert len(resumed) == len(range(1, found["lines"], stride)) >= 6
    names = {name for run in resumed for name in run.pop("left")}
    assert {"last.pt", "best.pt"} <= names and any(name.endswith(".part") for name in names)
    for each in resumed:
        assert equal(each, whole)
    assert whole["names"] == ["best.pt", "last.pt"], "nothing unfinished is left"
    assert equal(whole["weights"], whole["files"]["best.pt"]), "restored at the end"
    assert not equal(whole["weights"], whole["files"]["last.pt"])


def equal(one, other):
    """Whether two results are equal to the last bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def train_in(folder):
    """Train in a folder, from its last checkpoint if there is one; return what came out."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(97, 123, (4, 2, 9), generator=generator)
    *batches, held_out = [{"input_ids": each, "labels": each} for each in tokens]
    model = adapted(0.1, rank=2, target_modules=["q_proj"])
    last = folder / "last.pt"
    best = folder / "best.pt"
    history = train(
        model,
        batches,
        CONFIG,
        evaluate=lambda model: mean_loss(model, [held_out]),
        checkpoint=last,
        best_checkpoint=best,
        restore_best=True,
        resume_from=last if last.exists() else None,
    )
    return {
        "losses": history.losses,
        "evaluations": [(e.step, e.value) for e in history.evaluations],
        "stopped_early": history.stopped_early,
        "best": history.best.step,
        "weights": weights(model),
        "files": {path.name: torch.load(path)["weights"] for path in (last, best)},
        "names": sorted(path.name for path in folder.iterdir()),
    }


class Lines:
    """Counts the lines of the writing, and kills the process at one of them."""

    def __init__(self, last=None):
        self.count = 0
        self.last = last

    def __call__(self, frame, event, argument):
        place = frame.f_code.co_filename
        if not (place.endswith(WRITING) or f"{place}:{frame.f_code.co_name}".endswith(WRITING)):
            return None
        if event == "line":
            self.count += 1
            if self.count == self.last:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def in_process(work):
    """Call a function in a forked process, and return its result; None if it was killed."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reading)
        with open(writing, "wb") as file:
            pickle.dump(work(), file)
            file.flush()
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        content = file.read()
    _, status = os.waitpid(child, 0)
    assert content or os.WTERMSIG(status) == signal.SIGKILL, "the run failed"
    return pickle.loads(content) if content else None


def traced(folder, last=None):
    """Train while lines are counted; return their number."""
    lines = Lines(last)
    sys.settrace(lines)
    train_in(folder)
    return lines.count


def main(folder, stride):
    """Kill and resume runs, and write what came out."""
    for name in ("whole", "counted"):
        (folder / name).mkdir()
    results = [in_process(lambda: train_in(folder / "whole"))]
    total = in_process(lambda: traced(folder / "counted"))
    for moment in range(1, total, stride):
        place = folder / str(moment)
        place.mkdir()
        assert in_process(lambda place=place, moment=moment: traced(place, moment)) is None
        left = [path.name for path in place.iterdir()]
        results.append(in_process(lambda place=place: train_in(place)) | {"left": left})
    torch.save({"lines": total, "results": results}, folder / "results.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
