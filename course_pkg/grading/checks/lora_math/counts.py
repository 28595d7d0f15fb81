"""`lora-math/counts`: how many parameters LoRA adds to a model, from the shapes of its layers.

Chapter: exercises.
"""

from typing import Any

import numpy as np

from course_pkg.adapters.accounting import lora_parameters

from ...contract.compare import number
from ...contract.questions import Misconception, Property, Question

DECOYS = {"q_proj": "seq_proj", "v_proj": "conv_proj", "o_proj": "auto_proj", "up_proj": "pup_proj"}


def expected(inputs: dict[str, Any]) -> int:
    """The sum of r(out + in) over the layers whose last name is a target."""
    return sum(
        lora_parameters(out, into, inputs["rank"])
        for name, (out, into) in inputs["shapes"].items()
        if name.split(".")[-1] in inputs["targets"]
    )


def _total(inputs: dict[str, Any], count: Any, matches: Any = None) -> int:
    matches = matches or (lambda name, targets: name.split(".")[-1] in targets)
    return sum(
        count(out, into, inputs["rank"])
        for name, (out, into) in inputs["shapes"].items()
        if matches(name, inputs["targets"])
    )


def _names(rng: np.random.Generator, layers: int) -> tuple[list[str], list[str]]:
    targets = sorted(rng.choice(list(DECOYS), size=2, replace=False).tolist())
    return [f"layers.{i}.{name}" for i in range(layers) for name in targets], targets


def _some(rng: np.random.Generator, names: list[str]) -> list[str]:
    """One or more of the names, in their order."""
    kept = rng.choice(len(names), size=int(rng.integers(1, len(names) + 1)), replace=False)
    return [names[i] for i in sorted(kept)]


def draw_sum(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Rectangular layers, all of them targets."""
    names, targets = _names(rng, size + 1)
    shapes = {name: tuple(int(n) for n in rng.integers(8, 400, 2)) for name in names}
    return {"shapes": shapes, "targets": targets, "rank": int(rng.integers(2, 9))}


def draw_match(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """2 × 2 layers and rank 1, where sum and product agree, among names that are near misses."""
    names, targets = _names(rng, size + 1)
    names += [targets[0], f"model.decoder.layers.{size}.self_attn.{targets[1]}"]
    decoys = [f"layers.{i}.{DECOYS[t]}" for i in range(size + 1) for t in targets]
    others = ["lm_head", f"{targets[0]}.norm", f"layers.0.{targets[1]}_norm"]
    drawn = [_some(rng, group) for group in (names, decoys, others)]  # or the number would tell
    shapes = dict.fromkeys([name for group in drawn for name in group], (2, 2))
    return {"shapes": shapes, "targets": targets, "rank": 1}


COUNTS = Question(
    name="counts",
    expected=expected,
    compare=number(),
    properties=(
        Property(
            "sum",
            2,
            "each target layer adds r(out + in) parameters",
            "A has rank × in entries, B has out × rank; the base weight is not counted.",
            draw_sum,
        ),
        Property(
            "match",
            1,
            "a layer is a target when the last part of its dotted name is",
            "Compare name.split('.')[-1] with the targets: 'seq_proj' is not 'q_proj', and "
            "'q_proj.norm' ends in 'norm'.",
            draw_match,
        ),
    ),
    misconceptions=(
        Misconception(
            "product",
            "you multiplied out and in; LoRA has two thin factors, so they are added",
            lambda i: _total(i, lambda out, into, rank: rank * out * into),
            ("sum",),
        ),
        Misconception(
            "only-a",
            "you counted A (rank × in) and left out B (out × rank)",
            lambda i: _total(i, lambda out, into, rank: rank * into),
            ("sum", "match"),
        ),
        Misconception(
            "substring",
            "you looked for the target anywhere in the name; 'q_proj' is inside 'seq_proj'",
            lambda i: _total(
                i, lora_parameters, lambda name, targets: any(t in name for t in targets)
            ),
            ("match",),
        ),
        Misconception(
            "suffix",
            "you asked how the name ends; 'seq_proj' ends in 'q_proj' too",
            lambda i: _total(
                i, lora_parameters, lambda name, targets: name.endswith(tuple(targets))
            ),
            ("match",),
        ),
        Misconception(
            "everything",
            "you counted every layer, targets or not",
            lambda i: _total(i, lora_parameters, lambda name, targets: True),
            ("match",),
        ),
    ),
)
