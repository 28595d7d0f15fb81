"""The numbers of `lora-math` that are worked by hand, on each student's own small case.

Chapter: exercises.
"""

from collections.abc import Callable
from typing import Any

from course_pkg.adapters.accounting import lora_parameters

from ...contract.compare import number
from ...contract.questions import Misconception, Property, Question

ADAM_BYTES = 8  # two float32 moments for each trainable parameter


def _question(
    name: str,
    expected: Callable[[Any], float],
    says: str,
    hint: str,
    wrong: dict[str, tuple[str, Callable[[Any], float]]],
    rtol: float = 0.0,
) -> Question:
    return Question(
        name=f"by-hand/{name}",
        expected=expected,
        compare=number(rtol=rtol),
        variant="by-hand",
        properties=(Property("value", 1, says, hint, cases=1),),
        misconceptions=tuple(
            Misconception(key, text, value, ("value",)) for key, (text, value) in wrong.items()
        ),
    )


def layer_parameters(case: dict[str, Any]) -> int:
    """LoRA's parameters on one d × k layer of the case."""
    return lora_parameters(case["d"], case["k"], case["rank"])


def model_parameters(case: dict[str, Any]) -> int:
    """LoRA's parameters on the targets of every decoder layer, each hidden × hidden."""
    one = lora_parameters(case["hidden"], case["hidden"], case["rank"])
    return case["layers"] * len(case["targets"]) * one


def _share(trainable: float, case: dict[str, Any]) -> float:
    return 100 * trainable / (case["total"] + trainable)


BY_HAND = (
    _question(
        "parameters",
        layer_parameters,
        "1a: the number of parameters that LoRA adds to the layer",
        "A is r × k and B is d × r; count the entries of both.",
        {
            "product": (
                "you multiplied d and k; the two factors are added: r(d + k)",
                lambda c: c["rank"] * c["d"] * c["k"],
            ),
            "only-a": ("you counted A (r × k) but not B (d × r)", lambda c: c["rank"] * c["k"]),
            "only-b": ("you counted B (d × r) but not A (r × k)", lambda c: c["rank"] * c["d"]),
            "with-bias": (
                "you added a bias of d entries; LoRA has none, the base layer keeps its own",
                lambda c: layer_parameters(c) + c["d"],
            ),
        },
    ),
    _question(
        "reduction",
        lambda c: c["d"] * c["k"] / layer_parameters(c),
        "1b: the factor by which that is fewer",
        "How many times fewer parameters: the full count over LoRA's count.",
        {
            "share": (
                "this is the share that remains, r(1/k + 1/d); the factor is its reciprocal",
                lambda c: layer_parameters(c) / (c["d"] * c["k"]),
            ),
            "saved": (
                "this is the share that is saved, 1 − r(1/k + 1/d); the factor is a quotient",
                lambda c: 1 - layer_parameters(c) / (c["d"] * c["k"]),
            ),
            "without-rank": (
                "you left out the rank: dk / (d + k)",
                lambda c: c["d"] * c["k"] / (c["d"] + c["k"]),
            ),
        },
        rtol=5e-3,
    ),
    _question(
        "share",
        lambda c: _share(model_parameters(c), c),
        "1c: the trainable share of the whole model, in percent",
        "Every decoder layer has each of the targets once; each target is hidden × hidden.",
        {
            "fraction": (
                "this is the fraction; in percent it is a hundred times as much",
                lambda c: _share(model_parameters(c), c) / 100,
            ),
            "one-target": (
                "you counted one target module a layer; there are two",
                lambda c: _share(model_parameters(c) / 2, c),
            ),
            "four-targets": (
                "this is the share with q, k, v and o as targets; here it is q and v",
                lambda c: _share(model_parameters(c) * 2, c),
            ),
            "layer-of-1a": (
                "you took the d and k of 1a; the targets are hidden × hidden",
                lambda c: _share(c["layers"] * len(c["targets"]) * layer_parameters(c), c),
            ),
            "one-layer": (
                "you counted one decoder layer; the model has several",
                lambda c: _share(model_parameters(c) / c["layers"], c),
            ),
        },
        rtol=1e-2,
    ),
    _question(
        "optimizer-bytes",
        lambda c: ADAM_BYTES * model_parameters(c),
        "1d: the bytes of AdamW's state",
        "Only parameters that are trained have optimizer state; a float32 takes 4 bytes.",
        {
            "four-bytes": (
                "you counted four bytes a parameter; AdamW keeps two moments, each of four bytes",
                lambda c: 4 * model_parameters(c),
            ),
            "with-weights": (
                "you counted the parameters themselves too; AdamW's state is the two moments",
                lambda c: 12 * model_parameters(c),
            ),
            "with-gradients": (
                "you counted parameters and gradients too; AdamW's state is the two moments",
                lambda c: 16 * model_parameters(c),
            ),
            "whole-model": (
                "this is the state for every parameter of the model; frozen ones have none",
                lambda c: ADAM_BYTES * c["total"],
            ),
        },
    ),
)
