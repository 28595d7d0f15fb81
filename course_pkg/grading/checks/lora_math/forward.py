"""`lora-math/forward`: h = Wx + b + (α/r)·B(Ax), as a function of tensors.

Chapter: exercises.
"""

from typing import Any

import numpy as np
import torch

from ...contract.compare import array, exactly, parts
from ...contract.questions import Misconception, Property, Question
from .layers import normal, reference_layer, tensor, tensors


def expected(inputs: dict[str, Any]) -> dict[str, Any]:
    """What the reference layer gives, and that it changes no argument."""
    with torch.no_grad():
        return {"output": reference_layer(inputs)(tensor(inputs["x"])), "changed": []}


def _case(x: Any, weight: Any, bias: Any, lora_A: Any, lora_B: Any, alpha: float) -> dict[str, Any]:
    return {
        "alpha": alpha,
        "x": x,
        "weight": weight,
        "bias": bias,
        "lora_A": lora_A,
        "lora_B": lora_B,
    }


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, "float32")


def draw_base(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """B = 0, α ≠ r, square, with a bias: only the base layer shows."""
    n, r = 2 + size, 1 + size
    x, weight, bias = normal(rng, 2, n), normal(rng, n, n), normal(rng, n)
    return _case(x, weight, bias, normal(rng, r, n), _zeros(n, r), 3.5 * r)


def draw_update(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Rank 1 and α = 1, a bias of zeros, square: only the product BA shows."""
    n = 2 + size
    a, b = normal(rng, 1, n), normal(rng, n, 1)
    return _case(normal(rng, 2, n), normal(rng, n, n), _zeros(n), a, b, 1.0)


def draw_scaling(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """α ≠ r ≥ 2 and B = Aᵀ, so that BA is symmetric; a bias of zeros: only the scale shows."""
    n, r = 3 + size, 2 + size
    alpha = float(rng.choice([0.5, 1.5, 2.5])) * r + 0.25
    a = normal(rng, r, n)
    return _case(normal(rng, 2, n), normal(rng, n, n), _zeros(n), a, a.T.copy(), alpha)


def draw_shapes(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Zero to two leading dimensions, a rectangular layer, rank 1, α = 1; zeros or no bias."""
    d, k = 4, 3
    leading = ((), (5,), (2, 3))[size % 3]
    a, b = normal(rng, 1, k), normal(rng, d, 1)
    bias = None if size == 1 else _zeros(d)
    return _case(normal(rng, *leading, k), normal(rng, d, k), bias, a, b, 1.0)


def _wrong(change: Any) -> Any:
    """A misconception's value: the output of `change(tensors, base, update, alpha, rank)`."""

    def value(inputs: dict[str, Any]) -> dict[str, Any]:
        t = tensors(inputs)
        base = torch.nn.functional.linear(t["x"], t["weight"], t["bias"])
        update = t["x"] @ t["lora_A"].T @ t["lora_B"].T
        output = change(t, base, update, inputs["alpha"], t["lora_A"].shape[0])
        return {"output": output, "changed": []}

    return value


def _transposed(t: dict[str, Any], base: Any, update: Any, alpha: float, rank: int) -> Any:
    product = t["lora_B"] @ t["lora_A"]
    if product.shape[0] != product.shape[1]:
        return base  # x @ product is an error there
    return base + alpha / rank * t["x"] @ product


FORWARD = Question(
    name="forward",
    expected=expected,
    compare=parts({"output": array(rtol=1e-5, atol=1e-6)}),
    properties=(
        Property(
            "base",
            1,
            "with B = 0 the output is the base layer's, bias included; no argument is changed",
            "Start from x Wᵀ, add the bias, and leave the tensors that you are given as they are.",
            draw_base,
            compare=parts({"changed": exactly(), "output": array(rtol=1e-5, atol=1e-6)}),
        ),
        Property(
            "update",
            2,
            "the update is B(Ax): A first, then B",
            "weight is (out, in), so x is multiplied by weight.T; it is the same for A and B.",
            draw_update,
        ),
        Property(
            "scaling",
            1,
            "the update, and nothing else, is multiplied by α/r",
            "r is the number of rows of A.",
            draw_scaling,
        ),
        Property(
            "shapes",
            1,
            "x may have any number of leading dimensions, the layer any shape, and no bias",
            "Let the last dimension of x be the one that is multiplied: x @ weight.T does so. The "
            "bias may be None.",
            draw_shapes,
        ),
    ),
    misconceptions=(
        Misconception(
            "alpha-not-divided",
            "you multiplied the update by α; it is α/r",
            _wrong(lambda t, base, update, alpha, rank: base + alpha * update),
            ("scaling",),
        ),
        Misconception(
            "square-root",
            "you multiplied the update by α/√r; that is rsLoRA's scale, here it is α/r",
            _wrong(lambda t, base, update, alpha, rank: base + alpha / rank**0.5 * update),
            ("scaling",),
        ),
        Misconception(
            "floor",
            "you divided α by r with //, which rounds down; / does not",
            _wrong(lambda t, base, update, alpha, rank: base + alpha // rank * update),
            ("scaling",),
        ),
        Misconception(
            "no-scale",
            "you left the scale α/r out",
            _wrong(lambda t, base, update, alpha, rank: base + update),
            ("scaling",),
        ),
        Misconception(
            "all-scaled",
            "you multiplied the base layer's output by α/r as well; only the update has the factor",
            _wrong(lambda t, base, update, alpha, rank: alpha / rank * (base + update)),
            ("base", "scaling"),
        ),
        Misconception(
            "transposed",
            "your update is x(BA) instead of x(BA)ᵀ: A and B have changed places",
            _wrong(_transposed),
            ("update",),
        ),
        Misconception(
            "no-bias",
            "you lost the bias of the base layer",
            lambda inputs: expected({**inputs, "bias": None}),
            ("base",),
        ),
    ),
)
