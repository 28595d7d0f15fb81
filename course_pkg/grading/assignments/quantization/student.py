"""`quantization`, in the student's process: how some answers are called, and what is observed."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from course_pkg.grading.questions.calling import WrongUse, require_type
from course_pkg.grading.questions.comparators import wrong_type


def levels(answer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """What `normal_float(bits, offset)` gives, described half by half."""
    book = answer(inputs["bits"], inputs["offset"])
    if isinstance(book, np.ndarray):
        book = torch.as_tensor(book.copy())
    if not isinstance(book, Tensor) or book.ndim != 1 or not len(book):
        raise WrongUse(wrong_type("a tensor with one dimension", book))
    return describe(book)


def describe(levels: Tensor) -> dict[str, Any]:
    """The parts of a code book; each half is divided by its largest magnitude."""
    positive = levels[levels > 0]
    negative = levels[levels < 0]
    return {
        "positive levels, divided by the largest": positive / positive[-1:],
        "negative levels, divided by the smallest": negative / negative[:1],
        "number of levels": len(levels),
        "how many are 0": int((levels == 0).sum()),
        "in ascending order": bool((levels.diff() > 0).all()),
        "first and last level": [float(levels[0]), float(levels[-1])],
    }


class Stored:
    """A weight rounded to sixteenths, stored as int8."""

    def __init__(self, weight: Tensor) -> None:
        self.codes = (16 * weight.detach()).round().to(torch.int8)

    def store(self, weight: Tensor) -> None:
        """Store another weight of the same shape in its place."""
        self.codes.copy_((16 * weight.detach()).round())

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The weight, (out, in), in this dtype."""
        return self.codes.to(dtype) / 16


def linear(answer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """What `Linear4bit(linear, quantize, compute_dtype)` shows: forward and, if asked, backward.

    Only the cases about gradients run the backward pass: a fault in it costs no other point.
    `_later` is a weight that is stored before the backward pass: the gradient of x tells whether
    the weight is dequantized again. With `_trained` there is first a training step, and then
    another forward pass, whose output tells what else the layer computes with.
    """
    base = nn.Linear(*reversed(inputs["weight"].shape), bias=inputs["bias"] is not None)
    base.load_state_dict({n: inputs[n] for n in ("weight", "bias") if inputs[n] is not None})
    base.requires_grad_(False)
    given: list[Stored] = []

    def quantize(weight: Tensor) -> Stored:
        given.append(Stored(weight))
        return given[-1]

    dtype = getattr(torch, inputs["compute_dtype"])
    layer = answer(base, quantize, dtype)
    if not given:
        raise WrongUse("the __init__ of your layer did not call quantize(weight)")
    x = inputs["x"].clone().requires_grad_()
    result = require_type(layer(x), Tensor, "a tensor")
    change = torch.zeros_like(result)
    if inputs["_trained"]:
        _train(layer, result)
    if inputs["_later"] is not None:
        for stored in given:
            stored.store(inputs["_later"])
    if inputs["_trained"]:
        change = (layer(x) - result).float()
    if inputs["_backward"] and result.requires_grad:
        result.float().square().sum().backward()
    return {
        "the output": result.float(),
        "the change of the output when other codes are stored": change,
        "the dtype of the output": str(result.dtype),
        "computed in compute_dtype": torch.equal(result, result.to(dtype).to(result.dtype)),
        "the gradient of x": torch.zeros_like(x) if x.grad is None else x.grad,
        "trainable parameters": [n for n, p in layer.named_parameters() if p.requires_grad],
        "keeps a floating-point weight": _keeps(layer, base.weight.numel()),
    }


def _train(layer: nn.Module, result: Tensor) -> None:
    """One large step of gradient descent on all parameters that can be trained."""
    trained = [p for p in layer.parameters() if p.requires_grad]
    if trained and result.requires_grad:
        loss = result.float().square().sum()
        gradients = torch.autograd.grad(loss, trained, materialize_grads=True)
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.data -= gradient


def _keeps(layer: nn.Module, count: int) -> bool:
    """Whether the layer, or a module in it, holds a floating-point tensor of `count` numbers."""
    held = [*layer.parameters(), *layer.buffers()]
    held += [value for module in layer.modules() for value in vars(module).values()]
    return any(isinstance(t, Tensor) and t.is_floating_point() and t.numel() == count for t in held)
