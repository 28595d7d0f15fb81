"""`lora-math/merge`: a LoRA layer that folds its update into the weight and takes it out again.

Chapter: exercises.
"""

from typing import Any

import numpy as np
import torch
from torch import nn

from course_pkg.adapters.lora import LoRAConfig, LoRALinear

from ...contract.compare import Comparator, array
from ...contract.questions import Misconception, Property, Question
from .ask import call_merge
from .layers import normal


class Reference(nn.Module):
    """The course's layer under the names that the question gives: one adapter, A and B."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.layer = LoRALinear(base, LoRAConfig(rank=rank, alpha=alpha), "only")
        self.lora_A, self.lora_B = self.layer.lora_A["only"], self.layer.lora_B["only"]
        self.base, self.forward = self.layer.base, self.layer.forward
        self.merge, self.unmerge = self.layer.merge, self.layer.unmerge


class Wrong(nn.Module):
    """A layer with one known fault: where `fault` is not named below, it does the right thing."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float, fault: str) -> None:
        super().__init__()
        self.base, self.scaling, self.fault, self.kept = base, alpha / rank, fault, None
        self.lora_A = nn.Parameter(torch.ones(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def update(self) -> torch.Tensor:
        """(α/r)·BA, (out, in)."""
        return self.scaling * self.lora_B.detach() @ self.lora_A.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out)."""
        if self.kept is not None and self.fault != "counted-again":
            return self.base(x)
        return self.base(x) + self.scaling * (x @ self.lora_A.T @ self.lora_B.T)

    def merge(self) -> None:
        """Fold the update in."""
        if self.kept is not None and self.fault != "merged-twice":
            return
        weight = self.base.weight.data
        self.kept = weight if self.fault == "not-copied" else weight.clone()
        weight += self.update() / (self.scaling if self.fault == "unscaled" else 1)

    def unmerge(self) -> None:
        """Take it out."""
        if self.kept is None:
            return
        if self.fault == "subtracted":
            self.base.weight.data -= self.update()
        else:
            self.base.weight.data.copy_(self.kept)
        self.kept = None


def _wrong(fault: str) -> Any:
    return lambda inputs: call_merge(lambda *given: Wrong(*given, fault), inputs)


def expected(inputs: dict[str, Any]) -> list[Any]:
    """What the script of operations gives with the reference layer."""
    return call_merge(Reference, inputs)


def each(*comparators: Comparator) -> Comparator:
    """Compares a list item by item, the first comparator with the first item, and so on."""

    def compare(expected: list[Any], given: Any) -> str | None:
        if not isinstance(given, list) or len(given) != len(comparators):
            return f"{len(comparators)} results were asked for"
        for comparator, want, have in zip(comparators, expected, given, strict=True):
            if (reason := comparator(want, have)) is not None:
                return reason
        return None

    return compare


def zero_a(expected: bool, given: Any) -> str | None:
    """Compares whether A is zero, in words."""
    return None if given is expected else "A is zero at the start; so is B: neither can learn"


def _draw(script: list[str], alpha_over_rank: float = 1.0) -> Any:
    """Cases that run `script`; where α = r a wrong scale does not show."""

    def draw(rng: np.random.Generator, size: int) -> dict[str, Any]:
        d, k, r = 3 + size, 4 + size, 2 + size
        return {
            "script": script,
            "rank": r,
            "alpha": alpha_over_rank * r,
            "x": normal(rng, 2, k),
            "weight": normal(rng, d, k),
            "bias": normal(rng, d) if size % 2 else None,
            "lora_A": normal(rng, r, k),
            "lora_B": normal(rng, d, r),
        }

    return draw


close, same = array(rtol=1e-5, atol=1e-6), array(rtol=0.0)
BACK = ["set", "merge", "unmerge", "weight", "unmerge", "weight", "forward", "merge", "weight"]

MERGE = Question(
    name="merge",
    expected=expected,
    compare=each(close),
    properties=(
        Property(
            "start",
            1,
            "a new layer gives what the base layer gives, though its A is not zero",
            "Initialize A at random and B with zeros: then BA = 0, and yet B has a gradient.",
            _draw(["forward", "A is zero"], 2.0),
            compare=each(close, zero_a),
        ),
        Property(
            "learn",
            1,
            "A and B get the gradients of the unmerged layer's output",
            "A and B must take part in forward as they are: not detached, and not under no_grad.",
            _draw(["set", "gradients"]),
            compare=each(close, close),
        ),
        Property(
            "weight",
            2,
            "the update is (α/r)·BA, beside the weight and merged into it",
            "B @ A has the shape of the weight, (out, in); both ways have the factor α/r.",
            _draw(["set", "forward", "merge", "weight"], 2.5),
            compare=each(close, close),
        ),
        Property(
            "output",
            1,
            "a merged layer gives the output of an unmerged one",
            "Once the update is in the weight, forward must not add it again.",
            _draw(["set", "merge", "forward", "weight"]),
            compare=each(close, close),
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
            "unmerging restores the weight bit for bit, and the layer can be merged again",
            "(W + D) − D is not W in floating point: keep a copy. Unmerging twice, or a layer that "
            "is not merged, changes nothing.",
            _draw(BACK),
            compare=each(same, same, close, close),
        ),
    ),
    misconceptions=(
        Misconception(
            "unscaled", "you merged BA without the scale α/r", _wrong("unscaled"), ("weight",)
        ),
        Misconception(
            "merged-twice",
            "the second merge added the update again",
            _wrong("merged-twice"),
            ("twice",),
        ),
        Misconception(
            "subtracted",
            "you subtracted the update; rounding makes that differ from the weight you began with",
            _wrong("subtracted"),
            ("unmerge",),
        ),
        Misconception(
            "not-copied",
            "what you kept is the weight itself, which merging changed: keep a clone of it",
            _wrong("not-copied"),
            ("unmerge",),
        ),
        Misconception(
            "counted-again",
            "the merged layer still adds the update to its output",
            _wrong("counted-again"),
            ("output",),
        ),
    ),
)
