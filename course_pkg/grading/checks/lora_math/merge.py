"""`lora-math/merge`: a LoRA layer that folds its update into the weight and takes it out again."""

from typing import Any

import numpy as np
import torch

from ...compare import array, exactly
from ...questions import Misconception, Property, Question
from ...values import Array
from .layers import normal, reference_layer, tensor, tensors


def each(*comparators: Any) -> Any:
    """Compares a list item by item, the first comparator with the first item, and so on."""

    def compare(expected: list[Any], given: Any) -> str | None:
        if not isinstance(given, list) or len(given) != len(comparators):
            return f"{len(comparators)} results were asked for"
        for comparator, want, have in zip(comparators, expected, given, strict=True):
            if (reason := comparator(want, have)) is not None:
                return reason
        return None

    return compare


def expected(inputs: dict[str, Any]) -> list[Any]:
    """What the script of operations gives with the reference layer."""
    start = dict(inputs)
    if "set" not in inputs["script"]:
        zero = np.zeros_like(inputs["lora_B"].numpy())
        start["lora_B"] = Array.of(zero)
    layer = reference_layer(start)
    seen: list[Any] = []
    with torch.no_grad():
        for operation in inputs["script"]:
            match operation:
                case "forward":
                    seen.append(layer(tensor(inputs["x"])))
                case "weight":
                    seen.append(layer.base.weight.detach().clone())
                case "A is zero":
                    seen.append(False)
                case "merge":
                    layer.merge()
                case "unmerge":
                    layer.unmerge()
    return seen


def _draw(script: list[str], doubled: bool = False) -> Any:
    """Cases that run `script`; α = r unless `doubled`, so that a wrong scale shows only there."""

    def draw(rng: np.random.Generator, size: int) -> dict[str, Any]:
        d, k, r = 3 + size, 4 + size, 2 + size
        return {
            "script": script,
            "x": normal(rng, 2, k),
            "weight": normal(rng, d, k),
            "bias": normal(rng, d) if size % 2 else None,
            "lora_A": normal(rng, r, k),
            "lora_B": normal(rng, d, r),
            "rank": r,
            "alpha": float(2 * r if doubled else r),
        }

    return draw


def _weights(inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, float]:
    t = tensors(inputs)
    return t["weight"], t["lora_B"] @ t["lora_A"], inputs["alpha"] / inputs["rank"]


def _unscaled(inputs: dict[str, Any]) -> list[torch.Tensor]:
    weight, update, _ = _weights(inputs)
    return [weight + update]


def _twice(inputs: dict[str, Any]) -> list[torch.Tensor]:
    weight, update, scale = _weights(inputs)
    return [weight + 2 * scale * update]


def _subtracted(inputs: dict[str, Any]) -> list[torch.Tensor]:
    weight, update, scale = _weights(inputs)
    return [weight + scale * update - scale * update]


def _counted_again(inputs: dict[str, Any]) -> list[torch.Tensor]:
    x = tensor(inputs["x"])
    _, update, scale = _weights(inputs)
    right = expected(inputs)[0]
    return [right + scale * x @ update.T]


close, same = array(rtol=1e-5), array(rtol=0.0)

MERGE = Question(
    name="merge",
    expected=expected,
    compare=each(close),
    properties=(
        Property(
            "start",
            1,
            "a new layer gives what the base layer gives, though its A is not zero",
            "Initialise A at random and B with zeros: then BA = 0, and yet B has a gradient.",
            _draw(["forward", "A is zero"], doubled=True),
            compare=each(array(rtol=1e-6), exactly()),
        ),
        Property(
            "weight",
            2,
            "merging makes the weight W + (α/r)·BA",
            "B @ A has the shape of the weight, (out, in).",
            _draw(["set", "merge", "weight"], doubled=True),
        ),
        Property(
            "output",
            1,
            "a merged layer gives the output of an unmerged one",
            "Once the update is in the weight, forward must not add it again.",
            _draw(["set", "merge", "forward"]),
        ),
        Property(
            "twice",
            1,
            "merging twice is merging once",
            "Remember whether the layer is merged.",
            _draw(["set", "merge", "merge", "weight"]),
        ),
        Property(
            "unmerge",
            1,
            "unmerging restores the weight bit for bit",
            "(W + D) − D is not W in floating point: keep a copy.",
            _draw(["set", "merge", "unmerge", "weight"]),
            compare=each(same),
        ),
    ),
    misconceptions=(
        Misconception("unscaled", "you merged BA without the scale α/r", _unscaled, ("weight",)),
        Misconception(
            "merged-twice", "the second merge added the update again", _twice, ("twice",)
        ),
        Misconception(
            "subtracted",
            "you subtracted the update; rounding makes that differ from the weight you began with",
            _subtracted,
            ("unmerge",),
        ),
        Misconception(
            "counted-again",
            "the merged layer still adds the update to its output",
            _counted_again,
            ("output",),
        ),
    ),
)
