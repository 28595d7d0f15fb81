"""The gradient of a step and its update: precision, token means, clipping and AdamW.

Chapter: finetuning/sft.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.adapters.injection import trainable_parameters
from course_pkg.finetuning.config import Precision, TrainConfig, learning_rate_at
from course_pkg.finetuning.evaluation import Batch, targets_of
from course_pkg.finetuning.masking import IGNORE_INDEX


class Optimization:
    """AdamW on the parameters that require a gradient, in the precision of the config.

    A step is `accumulate`, which may be followed by `add` for a penalty, then `update`, then
    `clear`. Raises ValueError if there is nothing to train, or fp16 parameters with fp16 autocast.
    Source: Loshchilov & Hutter 2019 (AdamW).

    >>> from course_pkg.lm.load import load
    >>> tokens = torch.tensor([[72, 105, 33]])
    >>> step = Optimization(load("tiny").model, TrainConfig(steps=1))
    >>> loss, targets = step.accumulate([{"input_ids": tokens, "labels": tokens}], 1)
    >>> targets, step.update(1) > 0
    (2, True)
    """

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self.model, self.config = model, config
        self.parameters = trainable_parameters(model)
        if not self.parameters:
            raise ValueError("no parameter requires a gradient; inject an adapter or unfreeze some")
        self.device = next(iter(self.parameters.values())).device
        self.dtype = autocast_dtype(config.precision, self.device)
        half = any(p.dtype is torch.float16 for p in self.parameters.values())
        if self.dtype is torch.float16 and half:
            raise ValueError(
                "fp16 training needs its trainable parameters in fp32; convert them first"
            )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype is torch.float16)
        self.adamw = torch.optim.AdamW(_decay_groups(self.parameters, config.weight_decay))

    def accumulate(self, batches: Sequence[Batch], step: int) -> tuple[float, int]:
        """Add up the gradients of one step; return its mean loss and its number of targets.

        Raises ValueError if there is no target, FloatingPointError if the loss is not finite.
        """
        counts = [targets_of(self.model, batch) for batch in batches]
        total, mean = sum(counts), 0.0
        if total == 0:
            raise ValueError(f"step {step} has no target: every label is {IGNORE_INDEX}")
        for number, (batch, count) in enumerate(zip(batches, counts, strict=True), start=1):
            if count == 0:  # its mean loss would be 0/0
                continue
            batch = {name: tensor.to(self.device) for name, tensor in batch.items()}
            with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
                loss = self.model(**batch).loss * (count / total)
            value = loss.item()
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"the loss at step {step} (batch {number} of {len(batches)}) is {value}; lower "
                    "the learning rate, warm up longer, or look at the data"
                )
            self.scaler.scale(loss).backward()
            mean += value
        return mean, total

    def add(self, penalty: Tensor | None, step: int) -> None:
        """Add the gradient of a callback's loss, if there is one.

        Raises FloatingPointError if it is not finite.
        """
        if penalty is None:
            return
        if not torch.isfinite(penalty):
            raise FloatingPointError(f"the callback's loss at step {step} is {penalty.item()}")
        self.scaler.scale(penalty).backward()

    def update(self, step: int) -> float:
        """Clip the gradients and take AdamW's step; return their norm before clipping.

        Raises FloatingPointError if the norm is not finite, unless fp16's scaler skips the step.
        """
        self.scaler.unscale_(self.adamw)
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), self.config.max_grad_norm).item()
        if not (math.isfinite(norm) or self.scaler.is_enabled()):
            raise FloatingPointError(f"the gradient at step {step} is not finite ({norm})")
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate_at(step, self.config)
        self.scaler.step(self.adamw)
        self.scaler.update()
        return norm

    def clear(self) -> None:
        """Drop the gradients."""
        self.adamw.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """The states of AdamW and of fp16's scaler."""
        return {"optimizer": self.adamw.state_dict(), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.adamw.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])


def autocast_dtype(precision: Precision, device: torch.device) -> torch.dtype | None:
    """The dtype of matrix products under autocast; None without autocast.

    >>> autocast_dtype("auto", torch.device("cpu")), autocast_dtype("bf16", torch.device("cpu"))
    (None, torch.bfloat16)
    """
    if precision == "auto":
        if device.type != "cuda":
            return None
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def _decay_groups(parameters: Mapping[str, nn.Parameter], weight_decay: float) -> list[dict]:
    """Apply weight decay to matrices, not to vectors (biases, weights of norms)."""
    matrices = [p for p in parameters.values() if p.ndim >= 2]
    vectors = [p for p in parameters.values() if p.ndim < 2]
    groups = ({"params": matrices, "weight_decay": weight_decay}, {"params": vectors})
    return [{"weight_decay": 0.0, **group} for group in groups if group["params"]]
