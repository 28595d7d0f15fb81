"""What a training run is given: its settings, its learning rate at each step, and a callback."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from torch import Tensor, nn

from course_pkg.common.arguments import (
    require_between,
    require_choice,
    require_integer,
    require_number,
)

Schedule = Literal["linear", "cosine", "constant"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
Evaluate = Callable[[nn.Module], float]
FilePath = str | os.PathLike
COUNTS = {  # the least value of each
    "steps": 1,
    "accumulation": 1,
    "warmup_steps": 0,
    "seed": 0,
    "evaluate_every": 0,
    "checkpoint_every": 0,
    "patience": 0,
}


@dataclass(frozen=True)
class TrainConfig:
    """The settings of a run. A resumed run may change only the last three.

    Args:
        learning_rate: the peak of the schedule.
        accumulation: batches per step.
        warmup_steps: steps until the peak; see `learning_rate_at`.
        schedule: of the learning rate after the peak.
        weight_decay: not on biases and norms.
        max_grad_norm: the norm to which gradients are clipped; inf for no clipping.
        precision: "auto" means bf16 (or fp16) on a GPU, fp32 on a CPU.
        seed: for order and dropout.
        shuffle: a new order of the batches in each epoch.
        evaluate_every: in steps; 0 means only after the last step.
        checkpoint_every: in steps; 0 means only after the last step.
        patience: stop after this many evaluations without a new best; 0 means never.
    """

    steps: int
    learning_rate: float = 2e-4
    accumulation: int = 1
    warmup_steps: int = 0
    schedule: Schedule = "linear"
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    precision: Precision = "auto"
    seed: int = 0
    shuffle: bool = True
    evaluate_every: int = 0
    checkpoint_every: int = 0
    patience: int = 0
    progress: bool = True

    def __post_init__(self) -> None:
        for name, least in COUNTS.items():
            require_integer(require_number(getattr(self, name), name), name, least)
        for name in ("learning_rate", "weight_decay"):
            require_between(getattr(self, name), name, 0, math.inf, closed=True)
        if not require_number(self.max_grad_norm, "max_grad_norm") > 0:
            raise ValueError(f"max_grad_norm must be above 0 (or inf), got {self.max_grad_norm}")
        if self.patience and not self.evaluate_every:
            raise ValueError(
                f"patience={self.patience} counts evaluations, and without evaluate_every there is "
                "only one, after the last step; set evaluate_every to a number of steps"
            )
        require_choice(self.schedule, "schedule", get_args(Schedule))
        require_choice(self.precision, "precision", get_args(Precision))


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """The learning rate of a step, counted from 1.

    Rises as step / warmup_steps to its peak at step warmup_steps, then falls so that it would be 0
    at step steps + 1: linearly, or as (1 + cos(π·progress)) / 2; "constant" keeps the peak.
    Source: Goyal et al. 2017 (warm-up), Loshchilov & Hutter 2017 (cosine).

    >>> config = TrainConfig(steps=4, learning_rate=1.0, warmup_steps=2)
    >>> [round(learning_rate_at(step, config), 3) for step in (1, 2, 3, 4)]
    [0.5, 1.0, 0.667, 0.333]
    """
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    peak = max(config.warmup_steps, 1)  # without warm-up, the peak is at step 1
    progress = (step - peak) / (config.steps + 1 - peak)
    factors = {
        "linear": 1 - progress,
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
        "constant": 1.0,
    }
    return config.learning_rate * factors[config.schedule]


@runtime_checkable
class Callback(Protocol):
    """What a method can add to the loop, as AdaLoRA's `RankAllocator` does. Steps count from 1."""

    def start(self, model: nn.Module, steps: int) -> None:
        """Check the model and the number of steps; raise before anything changes."""

    def extra_loss(self) -> Tensor | None:
        """A scalar that is added to the loss of each step; the record doesn't include it."""
        return None

    def after_step(self, step: int) -> None:
        """Work after the optimizer's step, while the gradients (clipped) are still there."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: tensors, numbers and strings in dicts and lists."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
