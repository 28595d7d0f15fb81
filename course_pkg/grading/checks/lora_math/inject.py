"""`lora-math/inject`: put an adapter in the place of chosen layers, and freeze the rest.

Chapter: exercises.
"""

from typing import Any

import numpy as np
from torch import nn

from ...contract.compare import Comparator, array, exactly, parts
from ...contract.questions import Misconception, Property, Question
from .ask import call_inject_either
from .layers import normal

KINDS = ("q_proj", "k_proj", "v_proj", "o_proj")
DECOYS = ("seq_proj", "conv_proj", "auto_proj", "q_proj_norm", "v_proj_norm", "o_proj_norm")
NAMES_OF_GAIN = ("gain", "weight", "bias", "scale")


def inject(
    model: nn.Module,
    targets: list[str],
    wrap: Any,
    matches: Any = lambda name, targets: name.split(".")[-1] in targets,
    fault: str = "",
) -> list[str]:
    """Injection, with at most one known fault; without any it is the right answer."""
    modules = model.named_modules()
    linears = [name for name, module in modules if isinstance(module, nn.Linear)]
    names = [name for name in linears if matches(name, targets)]
    if not names and fault != "silent":
        raise ValueError(f"no linear layer is called {targets}")
    if fault not in ("not-frozen", "frozen-last"):
        model.requires_grad_(False)
    for name in names[: 1 if fault == "first-only" else None]:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, wrap(model.get_submodule(name)))
    if fault == "frozen-last":
        model.requires_grad_(False)
    return names[: 1 if fault == "first-only" else None]


def expected(inputs: dict[str, Any]) -> dict[str, Any]:
    """What becomes of the model under the right injection."""
    return call_inject_either(inject, inputs)


def _wrong(**fault: Any) -> Any:
    def answer(model: nn.Module, targets: list[str], wrap: Any) -> list[str]:
        return inject(model, targets, wrap, **fault)

    return lambda inputs: call_inject_either(answer, inputs)


def _chain(rng: np.random.Generator, names: list[str], targets: list[str]) -> dict[str, Any]:
    return {
        "model": "chain",
        "targets": targets,
        "names": names,
        "norms": [f"norms.{targets[0]}"],
        "parameter": str(rng.choice(NAMES_OF_GAIN)),
        "gain": 0.5,
        "width": 4,
        "seed": int(rng.integers(2**31)),
        "x": normal(rng, 2, 4),
    }


def _llama(rng: np.random.Generator, size: int) -> dict[str, Any]:
    return {
        "model": "llama",
        "targets": ["q_proj", "down_proj"],
        "parameter": str(rng.choice(NAMES_OF_GAIN)),
        "gain": 0.5,
        "seed": int(rng.integers(1000)),
        "tokens": rng.integers(0, 256, 4 + size).tolist(),
    }


def _names(layers: int, kinds: tuple[str, ...]) -> list[str]:
    return [f"layers.{i}.attn.{kind}" for i in range(layers) for kind in kinds]


def draw_targets(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Several layers, at several depths, with near misses among the names and a norm."""
    targets = sorted(rng.choice(["q_proj", "v_proj", "o_proj"], size=2, replace=False).tolist())
    names = [*_names(size + 1, (*KINDS, *DECOYS)), targets[1], "lm_head"]
    return _chain(rng, names, targets)


def draw_frozen(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """No near misses: only what can be trained shows. The last case is a Llama."""
    if size == 2:
        return _llama(rng, size)
    return {**_chain(rng, _names(size + 1, KINDS), ["k_proj", "v_proj"]), "norms": ["norm"]}


def draw_unknown(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """A target that no layer of this model has, and one that some have, in either order."""
    known, *others, unknown = rng.permutation(KINDS).tolist()
    first, then = rng.permutation([known, unknown]).tolist()
    chain = _chain(rng, _names(size + 1, (known, *others)), [first])
    return {**chain, "norms": ["norm"], "then": [then]}


def about(comparators: dict[str, Comparator]) -> Comparator:
    """Compares the named parts of what became of a model that should not be refused."""

    def compare(expected: dict[str, Any], given: Any) -> str | None:
        if isinstance(given, dict) and given.get("refused") is True:
            return f"your function raised ValueError: {given.get('message', '')}"
        return parts(comparators)(expected, given)

    return compare


OUTPUT = array(rtol=1e-5)
INJECT = Question(
    name="inject",
    expected=expected,
    compare=about(
        {
            "wrapped": exactly(),
            "returned": exactly(),
            "around its own layer": exactly(),
            "output": OUTPUT,
        }
    ),
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
            compare=about({"trainable": exactly()}),
        ),
        Property(
            "output",
            1,
            "the adapters take part in a Llama's forward pass",
            "setattr on the parent module (model.get_submodule) replaces a layer in place.",
            _llama,
            cases=2,
            compare=about({"output": OUTPUT}),
        ),
        Property(
            "unknown",
            1,
            "targets that no layer has raise ValueError, and others do not",
            "A misspelt target must not end in a training run that trains nothing.",
            draw_unknown,
            compare=exactly(),
        ),
    ),
    misconceptions=(
        Misconception(
            "substring",
            "you looked for the target anywhere in the name; 'q_proj' is inside 'seq_proj'",
            _wrong(matches=lambda name, targets: any(target in name for target in targets)),
            ("targets",),
        ),
        Misconception(
            "suffix",
            "you asked how the name ends; 'seq_proj' ends in 'q_proj' too",
            _wrong(matches=lambda name, targets: name.endswith(tuple(targets))),
            ("targets",),
        ),
        Misconception(
            "not-frozen",
            "the base layers can still be trained: set requires_grad to False on them",
            _wrong(fault="not-frozen"),
            ("frozen",),
        ),
        Misconception(
            "all-frozen",
            "the adapters are frozen too: freeze the model first, then put them in",
            _wrong(fault="frozen-last"),
            ("frozen",),
        ),
        Misconception(
            "first-only",
            "only the first target was wrapped",
            _wrong(fault="first-only"),
            ("targets", "frozen", "output"),
        ),
        Misconception(
            "silent",
            "nothing was wrapped and nothing was said",
            _wrong(fault="silent"),
            ("unknown",),
        ),
    ),
)
