"""`lora-math/forward`: h = Wx + b + (α/r)·B(Ax), as a function of tensors."""

from typing import Any

import numpy as np
import torch

from ...compare import array
from ...questions import Misconception, Property, Question
from .layers import normal, reference_layer, tensor, tensors


def expected(inputs: dict[str, Any]) -> torch.Tensor:
    """What the reference layer gives."""
    with torch.no_grad():
        return reference_layer(inputs)(tensor(inputs["x"]))


def _case(
    rng: np.random.Generator,
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None,
    lora_A: np.ndarray,
    lora_B: np.ndarray,
    alpha: float,
) -> dict[str, Any]:
    return {"x": x, "weight": weight, "bias": bias, "lora_A": lora_A, "lora_B": lora_B,
            "alpha": alpha}  # fmt: skip


def draw_base(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """B = 0, α ≠ r, square, with a bias: only the base layer shows."""
    n, r = 2 + size, 1 + size
    x, weight, bias = normal(rng, 2, n), normal(rng, n, n), normal(rng, n)
    zero = np.zeros((n, r), "float32")
    return _case(rng, x, weight, bias, normal(rng, r, n), zero, 3.0 * r)


def draw_update(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Rank 1 and α = 1, no bias, square: only the product BA shows."""
    n = 2 + size
    return _case(
        rng, normal(rng, 2, n), normal(rng, n, n), None, normal(rng, 1, n), normal(rng, n, 1), 1.0
    )


def draw_scaling(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """α ≠ r ≥ 2 with B = Aᵀ, so that BA is symmetric, and no bias: only the scale shows."""
    n, r = 3 + size, 2 + size
    alpha = float(rng.choice([0.5, 2.0, 3.0])) * r
    a = normal(rng, r, n)
    return _case(rng, normal(rng, 2, n), normal(rng, n, n), None, a, a.T.copy(), alpha)


def draw_shapes(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Zero to two leading dimensions, a rectangular layer, B = 0 and no bias."""
    d, k = 4, 3
    leading = ((), (5,), (2, 3))[size % 3]
    zero = np.zeros((d, 1), "float32")
    return _case(
        rng, normal(rng, *leading, k), normal(rng, d, k), None, normal(rng, 1, k), zero, 1.0
    )


def _transposed(inputs: dict[str, Any]) -> torch.Tensor:
    t = tensors(inputs)
    scale = inputs["alpha"] / t["lora_A"].shape[0]
    update = t["lora_B"] @ t["lora_A"]
    update = update.T if update.shape[0] == update.shape[1] else update
    return _base(inputs) + scale * t["x"] @ update.T


def _base(inputs: dict[str, Any]) -> torch.Tensor:
    t = tensors(inputs)
    return torch.nn.functional.linear(t["x"], t["weight"], t["bias"])


def _scaled(scale: Any) -> Any:
    def value(inputs: dict[str, Any]) -> torch.Tensor:
        t = tensors(inputs)
        rank = t["lora_A"].shape[0]
        update = t["x"] @ t["lora_A"].T @ t["lora_B"].T
        return _base(inputs) + scale(inputs["alpha"], rank) * update

    return value


def _without_bias(inputs: dict[str, Any]) -> torch.Tensor:
    return expected({**inputs, "bias": None})


FORWARD = Question(
    name="forward",
    expected=expected,
    compare=array(rtol=1e-5, atol=1e-6),
    properties=(
        Property(
            "base",
            1,
            "with B = 0 the output is the base layer's, its bias included",
            "Start from x Wᵀ, and add the bias if there is one.",
            draw_base,
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
            "x may have any number of leading dimensions",
            "Let the last dimension of x be the one that is multiplied: x @ weight.T does so.",
            draw_shapes,
        ),
    ),
    misconceptions=(
        Misconception(
            "alpha-not-divided",
            "you multiplied the update by α; it is α/r",
            _scaled(lambda alpha, rank: alpha),
            ("scaling",),
        ),
        Misconception(
            "square-root",
            "you multiplied the update by α/√r; that is rsLoRA's scale, here it is α/r",
            _scaled(lambda alpha, rank: alpha / rank**0.5),
            ("scaling",),
        ),
        Misconception(
            "no-scale",
            "you left the scale α/r out",
            _scaled(lambda alpha, rank: 1.0),
            ("scaling",),
        ),
        Misconception(
            "transposed",
            "your update is x(BA) instead of x(BA)ᵀ: A and B have changed places",
            _transposed,
            ("update",),
        ),
        Misconception("no-bias", "you lost the bias of the base layer", _without_bias, ("base",)),
    ),
)
