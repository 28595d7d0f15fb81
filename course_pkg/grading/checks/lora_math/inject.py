"""`lora-math/inject`: put an adapter in the place of chosen layers, and freeze the rest."""

from typing import Any

import numpy as np
import torch

from course_pkg.adapters.targets import find_targets

from ...compare import array, exactly, parts
from ...questions import Misconception, Property, Question
from .ask import call_inject
from .layers import normal

KINDS = ("q_proj", "k_proj", "v_proj", "o_proj")
DECOYS = ("seq_proj", "conv_proj", "auto_proj")


def reference_inject(model: torch.nn.Module, targets: list[str], wrap: Any) -> list[str]:
    """Injection with the course's own matching; `wrap` makes the adapter."""
    names = find_targets(model, targets)
    model.requires_grad_(False)
    for name in names:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, wrap(model.get_submodule(name)))
    return names


def expected(inputs: dict[str, Any]) -> dict[str, Any]:
    """What becomes of the model under the reference injection."""
    return call_inject(reference_inject, inputs)


def _chain(rng: np.random.Generator, names: list[str], targets: list[str]) -> dict[str, Any]:
    width = 4
    return {
        "model": "chain",
        "names": names,
        "width": width,
        "seed": int(rng.integers(2**31)),
        "x": normal(rng, 2, width),
        "targets": targets,
        "gain": 0.5,
    }


def _names(rng: np.random.Generator, layers: int, kinds: tuple[str, ...]) -> list[str]:
    return [f"layers.{i}.attn.{kind}" for i in range(layers) for kind in kinds]


def draw_targets(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Several layers, with near misses among the names."""
    names = _names(rng, size + 1, (*KINDS, *DECOYS))
    targets = sorted(rng.choice(["q_proj", "v_proj", "o_proj"], size=2, replace=False).tolist())
    return _chain(rng, [*names, "lm_head"], targets)


def draw_frozen(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """No near misses: only what can be trained shows."""
    return _chain(rng, _names(rng, size + 1, KINDS), ["k_proj", "v_proj"])


def draw_output(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """A Llama of two decoder layers, whose adapters are then opened."""
    return {
        "model": "llama",
        "seed": int(rng.integers(1000)),
        "tokens": rng.integers(0, 256, 4 + size).tolist(),
        "targets": ["q_proj", "down_proj"],
        "gain": 0.5,
    }


def draw_unknown(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """A target that no layer has."""
    return _chain(rng, _names(rng, size + 1, KINDS), ["query"])


def _wrong(matches: Any, freeze: bool = True, first_only: bool = False, late: bool = False) -> Any:
    """An injection that matches by `matches(name, targets)`, with the given faults."""

    def inject(model: torch.nn.Module, targets: list[str], wrap: Any) -> list[str]:
        linears = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
        names = [name for name in linears if matches(name, targets)][: 1 if first_only else None]
        if freeze and not late:
            model.requires_grad_(False)
        for name in names:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, wrap(model.get_submodule(name)))
        if late:
            model.requires_grad_(False)
        return names

    return lambda inputs: call_inject(inject, inputs)


def _last(name: str, targets: list[str]) -> bool:
    return name.split(".")[-1] in targets


def _about(*names: str) -> Any:
    return parts({"refused": exactly(), **dict.fromkeys(names, exactly())})


INJECT = Question(
    name="inject",
    expected=expected,
    compare=_about("wrapped", "returned"),
    properties=(
        Property(
            "targets",
            2,
            "exactly the linear layers whose last name is a target are wrapped, and returned",
            "Compare the last part of the dotted name: 'seq_proj' is not 'q_proj'. Collect the "
            "names before you change the model.",
            draw_targets,
        ),
        Property(
            "frozen",
            1,
            "afterwards only the adapters' own parameters can be trained",
            "Freeze the model before you put the adapters in, so that they stay trainable.",
            draw_frozen,
            compare=_about("trainable"),
        ),
        Property(
            "output",
            1,
            "the adapters take part in a Llama's forward pass",
            "setattr on the parent module (model.get_submodule) replaces a layer in place.",
            draw_output,
            cases=2,
            compare=parts({"refused": exactly(), "output": array(rtol=1e-5)}),
        ),
        Property(
            "unknown",
            1,
            "a target that no layer has is a ValueError",
            "A misspelt target must not end in a training run that trains nothing.",
            draw_unknown,
            cases=1,
            compare=parts({"refused": exactly()}),
        ),
    ),
    misconceptions=(
        Misconception(
            "substring",
            "you looked for the target anywhere in the name; 'q_proj' is inside 'seq_proj'",
            _wrong(lambda name, targets: any(target in name for target in targets)),
            ("targets",),
        ),
        Misconception(
            "suffix",
            "you asked how the name ends; 'seq_proj' ends in 'q_proj' too",
            _wrong(lambda name, targets: name.endswith(tuple(targets))),
            ("targets",),
        ),
        Misconception(
            "not-frozen",
            "the base layers can still be trained: set requires_grad to False on them",
            _wrong(_last, freeze=False),
            ("frozen",),
        ),
        Misconception(
            "all-frozen",
            "the adapters are frozen too: freeze the model first, then put them in",
            _wrong(_last, late=True),
            ("frozen",),
        ),
        Misconception(
            "first-only",
            "only the first target was wrapped",
            _wrong(_last, first_only=True),
            ("targets", "frozen", "output"),
        ),
        Misconception(
            "silent",
            "nothing was wrapped and nothing was said",
            _wrong(_last),
            ("unknown",),
        ),
    ),
)
