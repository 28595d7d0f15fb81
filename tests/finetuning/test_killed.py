"""Killed before a file is in place, a run resumes bit for bit as if nothing had happened."""

import itertools
import os
import signal

import pytest
import torch

from course_pkg.finetuning.trainer import mean_loss, train

from .runs import adapted, config, dies, same, weights

# Step 2 is the best, and step 3 the last: five files, each of which replaces the one before.
CONFIG = config(5, learning_rate=0.3, evaluate_every=1, checkpoint_every=1, patience=1)
FILES = 5
TOKENS = torch.randint(97, 123, (4, 2, 9), generator=torch.Generator().manual_seed(0))
*BATCHES, HELD_OUT = [{"input_ids": each, "labels": each} for each in TOKENS]


def train_in(folder):
    """Train in a folder, from its last checkpoint if there is one; return what came out."""
    model = adapted(0.1, rank=2, target_modules=["q_proj"])
    last = folder / "last.pt"
    best = folder / "best.pt"
    history = train(
        model,
        BATCHES,
        CONFIG,
        evaluate=lambda model: mean_loss(model, [HELD_OUT]),
        checkpoint=last,
        best_checkpoint=best,
        restore_best=True,
        resume_from=last if last.exists() else None,
    )
    return history, weights(model), [torch.load(path)["weights"] for path in (last, best)]


def killed_at(number, work):
    """Run something in a child that kills itself instead of putting its file of a number in place.

    os.replace: what every file comes by.
    """
    replace = os.replace
    numbers = itertools.count(1)

    def dying(*paths):
        if next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*paths)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", dying)
        dies(work)


def test_a_killed_run_resumes_bit_for_bit_with_both_files(tmp_path):
    (tmp_path / "whole").mkdir()
    history, trained, (last, best) = train_in(tmp_path / "whole")
    assert (len(history.steps), history.best.step, history.stopped_early) == (3, 2, True)
    assert same(trained, best) and not same(trained, last), "restored at the end"
    for number in range(1, FILES + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        killed_at(number, lambda folder=folder: train_in(folder))
        assert list(folder.glob(".*.part")), "it is killed while it writes"
        found, weights_then, files = train_in(folder)
        assert (found.losses, found.evaluations) == (history.losses, history.evaluations), number
        assert found.stopped_early and same(weights_then, trained), number
        assert same(files[0], last) and same(files[1], best), number
        assert {path.name for path in folder.iterdir()} == {"best.pt", "last.pt"}, number
