"""Checkpoints are small and written atomically; damaged or incompatible ones are refused."""

from dataclasses import replace

import pytest
import torch

from course_pkg.adapters.injection import inject, trainable_parameters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load

SETTINGS = TrainConfig(steps=2, progress=False)


def adapted(**changes):
    model = load("tiny").model
    inject(model, LoRAConfig(**{"rank": 2, "target_modules": ["q_proj"]} | changes))
    return model


@pytest.fixture
def batches():
    tokens = torch.arange(24).reshape(2, 12)
    return [{"input_ids": tokens, "labels": tokens}]


@pytest.fixture
def checkpoint(batches, tmp_path):
    path = tmp_path / "run" / "checkpoint.pt"
    train(adapted(), batches, SETTINGS, checkpoint=path)
    return path


def test_a_checkpoint_contains_the_adapter_but_not_the_base(checkpoint):
    state = torch.load(checkpoint, weights_only=True)
    assert state["weights"].keys() == trainable_parameters(adapted()).keys()
    assert checkpoint.stat().st_size < 100_000 < 4 * sum(p.numel() for p in adapted().parameters())
    assert [path.name for path in checkpoint.parent.iterdir()] == ["checkpoint.pt"]


def test_resuming_a_finished_run_does_nothing(checkpoint, batches):
    model = adapted()
    history = train(model, batches, SETTINGS, resume_from=checkpoint)
    assert len(history.steps) == 2
    saved = torch.load(checkpoint, weights_only=True)["weights"]
    assert all(torch.equal(p, saved[name]) for name, p in trainable_parameters(model).items())


def test_a_resumed_run_may_change_progress_and_checkpointing(checkpoint, batches):
    settings = replace(SETTINGS, checkpoint_every=1)
    assert len(train(adapted(), batches, settings, resume_from=checkpoint).steps) == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": 9}, "steps=2, now 9"),
        ({"learning_rate": 1.0}, r"learning_rate=0\.0002, now 1\.0"),
        ({"seed": 4, "accumulation": 2}, "accumulation=1, now 2, seed=0, now 4"),
    ],
)
def test_different_settings_are_refused(checkpoint, batches, change, says):
    with pytest.raises(ValueError, match=f"from a run with different settings: {says}"):
        train(adapted(), batches, replace(SETTINGS, **change), resume_from=checkpoint)


@pytest.mark.parametrize("change", [{"rank": 3}, {"target_modules": ["q_proj", "v_proj"]}])
def test_a_different_adapter_is_refused_and_not_changed(checkpoint, batches, change):
    model = adapted(**change)
    before = {name: p.clone() for name, p in trainable_parameters(model).items()}
    with pytest.raises(
        ValueError, match=r"from a different model or adapter: 4 trainable parameters"
    ):
        train(model, batches, SETTINGS, resume_from=checkpoint)
    assert all(torch.equal(p, before[name]) for name, p in trainable_parameters(model).items())


@pytest.mark.parametrize("keep", [0, 10, 1000, -100])
def test_a_truncated_file_is_refused(checkpoint, batches, keep):
    checkpoint.write_bytes(checkpoint.read_bytes()[:keep])
    with pytest.raises(ValueError, match="is damaged or not a checkpoint"):
        train(adapted(), batches, SETTINGS, resume_from=checkpoint)


def test_a_file_that_is_not_a_checkpoint_is_refused(tmp_path, batches):
    torch.save({"weights": {}}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="not a checkpoint"):
        train(adapted(), batches, SETTINGS, resume_from=tmp_path / "other.pt")
    (tmp_path / "text.pt").write_text("loss,step")
    with pytest.raises(ValueError, match=r"use a file that train\(.*\) wrote") as caught:
        train(adapted(), batches, SETTINGS, resume_from=tmp_path / "text.pt")
    assert "weights_only" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        train(adapted(), batches, SETTINGS, resume_from=tmp_path / "nowhere.pt")
