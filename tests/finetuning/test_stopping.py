"""Early stopping, the best checkpoint, and what a resumed run keeps of both."""

import json
import math
from dataclasses import replace

import pytest
import torch

from course_pkg.adapters.injection import inject, trainable_parameters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.history import Evaluation, History
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load

TOKENS = torch.arange(97, 121).reshape(2, 12)
BATCHES = [{"input_ids": TOKENS, "labels": TOKENS}]
CONFIG = TrainConfig(steps=9, learning_rate=1e-2, evaluate_every=2, patience=2, progress=False)
# Evaluations at steps 2, 4, 6, 8, 9: without patience, the best is the one at step 4.
VALUES = {2: 3.0, 4: 2.0, 6: 2.5, 8: 2.5, 9: 2.2}


class Watched:
    """A tiny model with an adapter, and an evaluation whose values are given, by step."""

    def __init__(self, values=VALUES, done=0):
        self.model = load("tiny").model
        inject(self.model, LoRAConfig(rank=2, target_modules=["q_proj"]))
        self.values = iter([value for step, value in values.items() if step > done])
        self.weights = []

    def evaluate(self, model):
        self.weights.append(self.now())
        return next(self.values)

    def now(self):
        return torch.cat([p.detach().flatten() for p in trainable_parameters(self.model).values()])

    def train(self, config=CONFIG, **arguments):
        return train(self.model, BATCHES, config, evaluate=self.evaluate, **arguments)


@pytest.mark.parametrize(
    ("values", "best", "since"),
    [
        ([], None, 0),
        ([5.0], 0, 0),
        ([5.0, 5.0], 0, 1),  # equal is not lower
        ([5.0, 4.9, 4.8], 2, 0),
        ([math.nan, 2.0, 1.0, 1.0], 2, 1),  # the first of the lowest
        ([5.0, math.nan, math.nan], 0, 2),
        ([math.nan, 5.0], 1, 0),
        ([math.inf, math.nan], None, 2),
        ([-1.0, -2.0, -1.5], 1, 1),  # minus an accuracy
    ],
)
def test_the_best_evaluation_and_the_number_since_by_hand(values, best, since):
    evaluations = [Evaluation(step, value) for step, value in enumerate(values)]
    history = History(evaluations=evaluations)
    assert history.best == (None if best is None else evaluations[best])
    assert history.evaluations_since_best == since


def test_a_run_stops_after_as_many_evaluations_without_improvement_as_patience():
    history = Watched().train()
    # 3.0, then 2.0 is the best; 2.5 and 2.5 are two evaluations without improvement.
    assert (len(history.steps), history.stopped_early, history.best) == (8, True, Evaluation(4, 2))
    patient = Watched().train(replace(CONFIG, patience=3))
    assert (len(patient.steps), patient.stopped_early) == (9, False), "the last step is not early"
    assert patient.losses[:8] == history.losses
    never = Watched().train(replace(CONFIG, patience=0))
    assert (len(never.steps), never.stopped_early) == (9, False)


def test_the_best_weights_are_kept_apart_and_restored_on_request(tmp_path):
    last, best = tmp_path / "last.pt", tmp_path / "best.pt"
    files = {"checkpoint": last, "best_checkpoint": best}
    plain, restored = Watched(), Watched()
    plain.train(**files)
    assert torch.equal(plain.now(), plain.weights[-1]), "without the request, the last weights"
    history = restored.train(**files, restore_best=True)
    assert torch.equal(restored.now(), restored.weights[1]) and history.best.step == 4
    assert not torch.equal(restored.now(), restored.weights[-1])
    steps = {path: len(_history(path)["steps"]) for path in (last, best)}
    assert steps == {last: 8, best: 4}
    continued = Watched(done=4)
    continued.train(resume_from=best)
    assert torch.equal(continued.now(), plain.now()), "the best checkpoint resumes, too"


def _history(path):
    return json.loads(torch.load(path, weights_only=True)["history"])


def test_a_resumed_run_keeps_patience_and_best(tmp_path):
    class Interrupted(Watched):
        def evaluate(self, model):
            value = super().evaluate(model)
            if len(self.weights) == 4:
                raise KeyboardInterrupt
            return value

    last, best = tmp_path / "last.pt", tmp_path / "best.pt"
    files = {"checkpoint": last, "best_checkpoint": best, "restore_best": True}
    whole, first, second = Watched(), Interrupted(), Watched(done=6)
    expected = whole.train()
    with pytest.raises(KeyboardInterrupt):  # at step 8
        first.train(replace(CONFIG, checkpoint_every=6), **files)
    history = second.train(resume_from=last, **files)
    assert history.losses == expected.losses and history.evaluations == expected.evaluations
    assert history.stopped_early and torch.equal(second.now(), whole.weights[1])
    again = Watched()
    assert again.train(resume_from=last, **files) == history, "a stopped run stays stopped"
    assert not again.weights and torch.equal(again.now(), whole.weights[1])


def test_a_stopped_run_resumes_with_more_patience(tmp_path):
    Watched().train(checkpoint=tmp_path / "last.pt")
    patient, continued = replace(CONFIG, patience=9), Watched(done=8)
    history = continued.train(patient, resume_from=tmp_path / "last.pt")
    whole = Watched()
    assert history.losses == whole.train(patient).losses and not history.stopped_early
    assert torch.equal(continued.now(), whole.now())


def test_a_run_without_any_number_ends_with_its_last_weights(tmp_path):
    watched = Watched(dict.fromkeys(VALUES, math.nan))
    history = watched.train(best_checkpoint=tmp_path / "best.pt", restore_best=True)
    assert (history.best, len(history.steps)) == (None, 4) and not list(tmp_path.iterdir())
    assert torch.equal(watched.now(), watched.weights[-1])


def test_another_best_checkpoint_is_refused(tmp_path):
    last, best, other = (tmp_path / name for name in ("last.pt", "best.pt", "other.pt"))
    Watched().train(checkpoint=last, best_checkpoint=best)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*nowhere"):
        Watched().train(resume_from=last, best_checkpoint=tmp_path / "nowhere.pt")
    Watched({2: 1.0, 4: 2.0, 6: 3.0}).train(best_checkpoint=other)
    with pytest.raises(
        ValueError, match=r"best step of this run is 4, but .*other.pt is of step 2"
    ):
        Watched().train(resume_from=last, best_checkpoint=other)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"evaluate": None}, r"patience=2 needs evaluate, such as lambda model: mean_loss\("),
        (
            {"evaluate": None, "config": replace(CONFIG, patience=0), "best_checkpoint": "b"},
            "best_checkpoint needs evaluate",
        ),
        ({"restore_best": True}, "restore_best=True needs best_checkpoint, a file"),
        (
            {"checkpoint": "run.pt", "best_checkpoint": "./run.pt"},
            "checkpoint and best_checkpoint need two files, got run.pt twice",
        ),
    ],
)
def test_arguments_that_need_others_are_refused(arguments, says, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    watched = Watched()
    given = {"config": CONFIG, "evaluate": watched.evaluate} | arguments
    with pytest.raises(ValueError, match=says):
        train(watched.model, BATCHES, **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"patience": 3},
            "patience=3 counts evaluations, and without evaluate_every there is only",
        ),
        ({"patience": -1}, "patience must be an integer of at least 0, got -1"),
        ({"patience": 1.5}, "patience must be an integer of at least 0, got 1.5"),
    ],
)
def test_settings_of_early_stopping_are_checked(settings, says):
    with pytest.raises(ValueError, match=says):
        TrainConfig(steps=5, **settings)
