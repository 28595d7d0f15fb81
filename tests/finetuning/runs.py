"""Small training runs for the tests of the loop, of its checkpoints, and of its references."""

import os
import signal

import torch

from course_pkg.adapters.injection import inject, trainable_parameters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.config import TrainConfig, learning_rate_at
from course_pkg.lm.load import load


def make_batches(count=5):
    """Batches of unequal length with unequal numbers of masked labels."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for number in range(count):
        tokens = torch.randint(0, 256, (2, 6 + 3 * number), generator=generator)
        labels = tokens.clone()
        labels[0, : 3 + number] = -100
        mask = torch.ones_like(tokens)
        batches.append({"input_ids": tokens, "attention_mask": mask, "labels": labels})
    return batches


def adapted(dropout=0.0, **changes):
    """The tiny model with a LoRA adapter."""
    model = load("tiny").model
    inject(model, LoRAConfig(**{"rank": 4, "dropout": dropout} | changes))
    return model


def config(steps, **changes):
    """Settings with a large rate, and without a progress bar."""
    return TrainConfig(**{"steps": steps, "learning_rate": 1e-2, "progress": False} | changes)


def weights(model):
    return {name: p.detach().clone() for name, p in trainable_parameters(model).items()}


def same(one, other):
    """Whether weights are equal to the last bit."""
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def dies(work):
    """Run something in a child, which must kill itself."""
    if (child := os.fork()) == 0:
        torch.set_num_threads(1)  # the parent's threads are not there
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


# Settings of transformers' Trainer: on the CPU, in the order of the rows, each step logged.
REFERENCE = {
    "train_sampling_strategy": "sequential",
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
}


def reference_optimizers(model, config):
    """torch's AdamW and a schedule with our learning rates, for transformers' Trainer."""
    optimizer = torch.optim.AdamW(
        trainable_parameters(model).values(),
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: learning_rate_at(done + 1, config) / config.learning_rate
    )
    return optimizer, schedule
