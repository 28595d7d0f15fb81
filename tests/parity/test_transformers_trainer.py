"""Our training loop compared with transformers' Trainer: same batches, losses and weights."""

import copy

import pytest
import torch
from transformers import Trainer, TrainingArguments, get_scheduler

from course_pkg.adapters.injection import inject, trainable_parameters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.config import TrainConfig, learning_rate_at
from course_pkg.finetuning.trainer import train
from tests.finetuning.runs import REFERENCE, reference_optimizers

from .small_models import EQUAL, error, llama

STEPS = 10
PEAK = 1e-2


def make_batches(count=7):
    """Batches whose answers have very different lengths."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for number in range(count):
        tokens = torch.randint(1, 32, (2, 6 + 3 * number), generator=generator)
        labels = tokens.clone()
        labels[:, : 4 + number] = -100
        labels[0, 5 + number :] = -100  # one target: a short answer, then padding
        batches.append({"input_ids": tokens, "labels": labels})
    return batches


def settings(**changes):
    fixed = {"steps": STEPS, "learning_rate": PEAK, "warmup_steps": 3, "shuffle": False}
    return TrainConfig(**fixed | {"progress": False} | changes)


class Recorder(Trainer):
    """A Trainer that takes ready batches in their order, and keeps each step's loss."""

    def __init__(self, model, batches, config, folder):
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=config.steps,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=config.accumulation,
            max_grad_norm=config.max_grad_norm,
            **REFERENCE,
        )
        super().__init__(
            model,
            arguments,
            data_collator=lambda examples: examples[0],
            train_dataset=batches,
            optimizers=reference_optimizers(model, config),
        )

    def run(self):
        self.train()
        logged = [entry for entry in self.state.log_history if "loss" in entry]
        return tuple(
            [entry[key] for entry in logged] for key in ("loss", "grad_norm", "learning_rate")
        )


def recorded(history):
    keys = ("loss", "grad_norm", "learning_rate")
    return tuple([getattr(record, key) for record in history.steps] for key in keys)


@pytest.mark.parametrize(("adapter", "accumulation"), [(True, 1), (False, 7)])
def test_ten_steps_equal_trainers(tmp_path, adapter, accumulation):
    ours = llama()
    if adapter:
        inject(ours, LoRAConfig(rank=4, alpha=8))
    theirs = copy.deepcopy(ours)
    config = settings(accumulation=accumulation, max_grad_norm=0.05)
    losses, norms, rates = recorded(train(ours, make_batches(), config))
    expected = Recorder(theirs, make_batches(), config, tmp_path).run()
    assert losses == pytest.approx(expected[0], rel=4 * EQUAL)
    assert norms == pytest.approx(expected[1], rel=1e-3) and max(norms) > 0.05
    assert rates == pytest.approx(expected[2], rel=1e-9)
    assert losses[-1] < losses[0] - 0.05
    for name, parameter in trainable_parameters(ours).items():
        assert error(parameter, theirs.get_parameter(name)) < 1e-3, name


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 3])
def test_our_schedule_is_theirs_without_its_first_step(schedule, warmup):
    """With warm-up, transformers' first step has a rate of 0, so it trains nothing.

    Our steps 1, 2, … are its 1, 2, … counted from 0, of a run that is one step longer.
    """
    config = settings(schedule=schedule, warmup_steps=warmup)
    names = {"constant": "constant_with_warmup"}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    theirs = get_scheduler(
        names.get(schedule, schedule),
        optimizer,
        num_warmup_steps=max(warmup, 1),
        num_training_steps=STEPS + 1,
    )
    rates = []
    for _ in range(STEPS + 1):
        rates.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    assert rates[0] == 0
    assert rates[1:] == pytest.approx([learning_rate_at(s, config) for s in range(1, STEPS + 1)])
