"""`lora-math`: the cases of its questions, and the right values from `course_pkg.adapters`.

Each draw isolates one property: α = r hides a wrong scale, a symmetric BA hides a transposed one.
"""

from random import Random
from typing import Any

import torch
from torch import nn

from course_pkg.adapters.accounting import lora_parameters
from course_pkg.adapters.lora import LoRAConfig, LoRALinear
from course_pkg.adapters.targets import matches
from course_pkg.grading.assignments.lora_math import student
from course_pkg.grading.questions.draws import each_then_any, normal_arrays

Inputs = dict[str, Any]
KINDS = ["q_proj", "k_proj", "v_proj", "o_proj"]
DECOYS = {"q_proj": "seq_proj", "v_proj": "conv_proj", "o_proj": "auto_proj"}


def by_hand(rng: Random | None) -> Inputs:
    """A layer of shape (d, k) and a decoder, small enough to count on paper."""
    if rng is None:
        case = {"d": 3072, "k": 768, "rank": 8, "layers": 32, "hidden": 4096}
        return {**case, "total": 6_738_415_616, "targets": ["q_proj", "v_proj"]}
    k = 64 * rng.randint(4, 32)
    rank = 2 ** rng.randint(2, 4)
    layers = 2 * rng.randint(6, 20)
    d = k * rng.randint(2, 5)
    hidden = 256 * rng.randint(5, 20)
    while abs(2 * hidden - d - k) < 0.1 * hidden:  # or both layers would give the same count
        hidden += 256
    case = {"d": d, "k": k, "rank": rank, "layers": layers, "hidden": hidden}
    total = 12 * layers * hidden**2 + 32_000 * hidden
    return {**case, "total": total, "targets": ["q_proj", "v_proj"]}


def by_hand_expected(case: Inputs) -> dict[str, float]:
    parameters = lora_parameters(case["d"], case["k"], case["rank"])
    one = lora_parameters(case["hidden"], case["hidden"], case["rank"])
    trainable = case["layers"] * len(case["targets"]) * one
    return {
        "parameters": parameters,
        "reduction": case["d"] * case["k"] / parameters,
        "share": 100 * trainable / (case["total"] + trainable),  # in percent, as PEFT counts it
        "optimizer-bytes": 2 * 4 * trainable,  # two float32 moments for each parameter
    }


def counts_expected(inputs: Inputs) -> int:
    shapes = [s for name, s in inputs["shapes"].items() if matches(name, inputs["targets"])]
    return sum(lora_parameters(*shape, inputs["rank"]) for shape in shapes)


def counts_sum(rng: Random, size: int) -> Inputs:
    """Rectangular layers, all of them targets."""
    targets = rng.sample(list(DECOYS), 2)
    names = [f"layers.{i}.{target}" for i in range(size + 1) for target in targets]
    shapes = {name: (rng.randint(8, 400), rng.randint(8, 400)) for name in names}
    return {"shapes": shapes, "targets": targets, "rank": rng.randint(2, 8)}


def counts_match(rng: Random, size: int) -> Inputs:
    """2 × 2 layers and rank 1, where sum and product agree, among names that are near misses."""
    first, second = targets = rng.sample(list(DECOYS), 2)
    pairs = [(f"layers.{i}", target) for i in range(size + 1) for target in targets]
    names = [".".join(pair) for pair in pairs] + [first, f"decoder.layers.0.attn.{second}"]
    decoys = [f"{layer}.{DECOYS[target]}" for layer, target in pairs]
    shapes = {}
    for group in (names, decoys, ["lm_head", f"{first}.norm", f"layers.0.{second}_norm"]):
        shapes |= dict.fromkeys(rng.sample(group, rng.randint(1, len(group))), (2, 2))
    return {"shapes": shapes, "targets": targets, "rank": 1}


def _layer(rng: Random, x: tuple[int, ...], d: int, r: int, alpha: float, zero: str = "") -> Inputs:
    """A layer of d outputs with factors of rank r; every array is random, but for one of zeros."""
    k = x[-1]
    layer = normal_arrays(rng, x=x, weight=(d, k), bias=d, lora_A=(r, k), lora_B=(d, r))
    if zero:
        layer[zero][:] = 0
    return layer | {"alpha": alpha}


def forward_base(rng: Random, size: int) -> Inputs:
    """B = 0, α ≠ r, square, with a bias: only the base layer shows."""
    return _layer(rng, (2, 2 + size), 2 + size, 1 + size, 3.5 * (1 + size), "lora_B")


def forward_update(rng: Random, size: int) -> Inputs:
    """Rank 1 and α = 1, a bias of zeros, square: only the product BA shows."""
    return _layer(rng, (2, 2 + size), 2 + size, 1, 1.0, "bias")


def forward_scaling(rng: Random, size: int) -> Inputs:
    """α ≠ r ≥ 2 and B = Aᵀ, so that BA is symmetric; a bias of zeros: only the scale shows."""
    n = 3 + size
    r = 2 + size
    layer = _layer(rng, (2, n), n, r, rng.choice([0.5, 1.5, 2.5]) * r + 0.25, "bias")
    return {**layer, "lora_B": layer["lora_A"].T}


def forward_shapes(rng: Random, size: int) -> Inputs:
    """Zero to two leading dimensions, a rectangular layer, rank 1, α = 1; zeros or no bias."""
    layer = _layer(rng, ((3,), (5, 3), (2, 3, 3))[size], 4, 1, 1.0, "bias")
    return {**layer, "bias": None} if size == 1 else layer


class OneAdapter(nn.Module):
    """The course's layer with the attributes that the question names: one adapter, A and B."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        layer = LoRALinear(base, LoRAConfig(rank=rank, alpha=alpha), "only")
        self.lora_A = layer.lora_A["only"]
        self.lora_B = layer.lora_B["only"]
        self.base = layer.base
        self.forward = layer.forward
        self.merge = layer.merge
        self.unmerge = layer.unmerge


def merge_expected(inputs: Inputs) -> list[Any]:
    """What the script of operations observes on the reference layer."""
    return student.merge(OneAdapter, inputs)


def forward_expected(inputs: Inputs) -> torch.Tensor:
    how = {"rank": len(inputs["lora_A"]), "_filled": True, "operations": ["forward"]}
    return merge_expected(inputs | how)[0]


def draw_operations(
    rng: Random, size: int, *, do: str, scale: float = 1.0, filled: bool = True
) -> Inputs:
    """A layer and what to do with it. scale: α/r; where it is 1 a wrong scale does not show."""
    layer = _layer(rng, (2, 4 + size), 3 + size, 2 + size, scale * (2 + size))
    layer |= {"rank": 2 + size, "_filled": filled, "operations": do.split(", ")}
    return layer if size % 2 else {**layer, "bias": None}


BACK = "merge, unmerge, weight, unmerge, weight, forward, merge, weight"


def inject_expected(inputs: Inputs) -> dict[str, Any]:
    """What a right injection makes of the model: a hook on each target multiplies its output.

    The gains are the only parameters of the model that can be trained.
    """
    model = student.build_model(inputs).requires_grad_(False)
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    names = sorted(name for name in linears if matches(name, inputs["targets"]))
    for name in names:
        gain = nn.Parameter(torch.full((linears[name].out_features,), student.GAIN))
        linears[name].register_parameter("gain", gain)
        linears[name].register_forward_hook(lambda layer, _, out: out * (1 + layer.gain))
    return {
        "raises": "nothing" if names else "ValueError",
        "wrapped": names,
        "returned": names,
        "each around its own layer": True,
        "trainable": sorted(f"{name}.{inputs['_parameter']}" for name in names),
        **student.effects(model, inputs),
    }


def _model(rng: Random, size: int, kinds: list[str], targets: list[str], *more: str) -> Inputs:
    """The names of a model's layers, what to adapt, and what an adapter's parameter is called."""
    inner = [f"layers.{i}.attn.{kind}" for i in range(size + 1) for kind in kinds]
    how = {"_parameter": rng.choice(["gain", "weight", "bias", "scale"]), "_may_raise": False}
    how["_seed"] = rng.randrange(1000)
    return {"names": ["norm", *inner, *more], "targets": targets, **how}


def inject_targets(rng: Random, size: int) -> Inputs:
    """Several layers, at several depths, with near misses among the names and a norm."""
    first, second = targets = rng.sample(list(DECOYS), 2)
    kinds = [*KINDS, *DECOYS.values(), *(f"{name}_norm" for name in DECOYS)]
    return _model(rng, size, kinds, targets, f"norms.{first}", second, "lm_head")


def inject_output(rng: Random, size: int) -> Inputs:
    """A tiny Llama: `names` is for the layers of other models."""
    text = {"_seed": rng.randrange(1000), "_tokens": [rng.randrange(256) for _ in range(4 + size)]}
    model = _model(rng, 0, [], ["q_proj", "down_proj"])
    del model["names"]
    return {**model, **text}


def inject_frozen(rng: Random, size: int) -> Inputs:
    """No near misses: only what can be trained shows. The last case is a Llama."""
    return inject_output(rng, 2) if size == 2 else _model(rng, size, KINDS, KINDS[1:3])


def inject_unknown(rng: Random, size: int) -> Inputs:
    """A target that no layer of the model has; one that some have; then one of these."""
    known, *others, unknown = rng.sample(KINDS, 4)
    has = each_then_any(rng, size, 2)
    model = _model(rng, size // 2, [known, *others], [known if has else unknown])
    return {**model, "_may_raise": True}
