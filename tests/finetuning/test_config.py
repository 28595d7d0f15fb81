"""The settings of a run; tests/parity/test_transformers_trainer.py compares the learning rates."""

import math

import pytest

from course_pkg.finetuning.config import TrainConfig, learning_rate_at
from tests.tables import each_row


@each_row("warmup", [0, 1, 3, 4, 100])
@each_row("schedule", ["linear", "cosine", "constant"])
def test_every_learning_rate_is_positive_and_at_most_the_peak(warmup, schedule):
    settings = TrainConfig(steps=4, learning_rate=3e-4, warmup_steps=warmup, schedule=schedule)
    rates = [learning_rate_at(step, settings) for step in range(1, 5)]
    assert all(0 < rate <= 3e-4 for rate in rates)
    assert max(rates) == (3e-4 if warmup <= 4 else 3e-4 * 4 / 100)


@each_row(
    ("changes", "says"),
    [
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"warmup_steps": 0.1}, "warmup_steps must be an integer of at least 0, got 0.1"),
        ({"learning_rate": -1e-3}, "learning_rate must be at least 0 and finite, got -0.001"),
        ({"learning_rate": math.nan}, "learning_rate must be"),
        ({"weight_decay": math.inf}, "weight_decay must be at least 0 and finite"),
        ({"max_grad_norm": 0}, "max_grad_norm must be above 0 .or inf., got 0"),
        ({"schedule": "step"}, "schedule must be one of linear, cosine, constant, got 'step'"),
        ({"precision": "int8"}, "precision must be one of"),
        ({"patience": 3}, "patience=3 counts evaluations, and without evaluate_every there is"),
    ],
)
def test_an_invalid_setting_says_what_is_expected(changes, says):
    with pytest.raises(ValueError, match=says):
        TrainConfig(**{"steps": 1} | changes)


@each_row("name", ["steps", "seed", "learning_rate", "max_grad_norm"])
def test_a_setting_that_is_not_a_number_is_refused(name):
    with pytest.raises(TypeError, match=f"{name} must be a number, got '1e-3'"):
        TrainConfig(**{"steps": 1} | {name: "1e-3"})
