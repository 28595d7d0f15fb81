"""`peft-methods`, in the student's process: how `dora_forward` is called and what is observed."""

from typing import Any

import torch
from torch import Tensor

from course_pkg.grading.questions.calling import require_type


def dora(answer: Any, inputs: dict[str, Any]) -> list[Tensor]:
    """The output of `dora_forward` and the gradients of A, B and the magnitude."""
    names = ("lora_A", "lora_B", "magnitude")
    factors = [inputs[name].requires_grad_() for name in names]
    result = answer(inputs["x"], inputs["weight"], inputs["bias"], *factors, inputs["alpha"])
    return observed(require_type(result, Tensor, "a tensor"), factors)


def observed(result: Tensor, factors: list[Tensor]) -> list[Tensor]:
    """A result, and the gradients of the sum of its squares; zeros where there is none."""
    if not result.requires_grad:
        return [result, *map(torch.zeros_like, factors)]
    loss = result.square().sum()
    return [result, *torch.autograd.grad(loss, factors, materialize_grads=True)]
