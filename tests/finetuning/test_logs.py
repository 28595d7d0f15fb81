"""TensorBoard's logs: what is written, what a resumed run hides, and a missing package."""

import sys
import types

import pytest
import torch

from course_pkg.adapters.injection import inject, trainable_parameters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load

TOKENS = torch.arange(24).reshape(2, 12)
BATCHES = [{"input_ids": TOKENS, "labels": TOKENS}]
CONFIG = TrainConfig(steps=3, evaluate_every=2, progress=False)


class Writer:
    """Takes the place of TensorBoard's SummaryWriter."""

    made = ()

    def __init__(self, folder, purge_step):
        self.folder, self.purge_step, self.calls = folder, purge_step, []
        Writer.made = (*Writer.made, self)

    def add_scalar(self, name, value, step):
        self.calls.append((step, name, value))

    def flush(self):
        self.calls.append("flush")

    def close(self):
        self.calls.append("close")


@pytest.fixture
def writers(monkeypatch):
    monkeypatch.setattr(Writer, "made", ())
    fake = types.SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    return Writer


def run(folder, config=CONFIG, **arguments):
    model = load("tiny").model
    inject(model, LoRAConfig(rank=2, target_modules=["q_proj"]))
    return train(model, BATCHES, config, evaluate=lambda m: 1.5, tensorboard=folder, **arguments)


def test_every_step_and_evaluation_is_logged(writers, tmp_path):
    history = run(tmp_path)
    (writer,) = writers.made
    assert (writer.folder, writer.purge_step) == (str(tmp_path), 1)
    names = ["train/loss", "train/learning_rate", "train/grad_norm", "train/tokens_per_second"]
    expected = []
    for r in history.steps:
        values = (r.loss, r.learning_rate, r.grad_norm, r.tokens / r.seconds)
        expected += [(r.step, name, value) for name, value in zip(names, values, strict=True)]
        if r.step > 1:
            expected += [(r.step, "evaluation", 1.5), "flush"]
    assert writer.calls == [*expected, "close"]


def test_a_resumed_run_hides_what_came_after_the_checkpoint(writers, tmp_path):
    def stop(model):
        raise KeyboardInterrupt

    model = load("tiny").model
    config = TrainConfig(steps=3, evaluate_every=3, checkpoint_every=2, progress=False)
    files = {"tensorboard": tmp_path / "logs", "checkpoint": tmp_path / "run.pt"}
    with pytest.raises(KeyboardInterrupt):
        train(model, BATCHES, config, evaluate=stop, **files)
    assert writers.made[0].calls[-1] == "close", "closed after an error, too"
    resumed = load("tiny").model
    train(resumed, BATCHES, config, resume_from=tmp_path / "run.pt", **files)
    assert writers.made[1].purge_step == 3 and writers.made[1].calls[0][0] == 3


def test_without_tensorboard_the_error_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    model = load("tiny").model
    before = [parameter.clone() for parameter in trainable_parameters(model).values()]
    with pytest.raises(ModuleNotFoundError, match=r"`pip install tensorboard`, or leave out"):
        train(model, BATCHES, CONFIG, tensorboard=tmp_path / "logs")
    assert all(map(torch.equal, trainable_parameters(model).values(), before))
    assert not list(tmp_path.iterdir())
    train(model, BATCHES, CONFIG)


def test_tensorboard_reads_the_file(tmp_path):
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed",
    )
    run(tmp_path)
    history = run(tmp_path)  # a second run in the same folder replaces the first
    events = reader.EventAccumulator(str(tmp_path)).Reload()
    losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert losses == [(r.step, pytest.approx(r.loss, rel=1e-6)) for r in history.steps]
    assert [event.step for event in events.Scalars("evaluation")] == [2, 3]
