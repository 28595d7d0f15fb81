"""`peft-methods`: the cases of its questions, and the right values from `course_pkg.adapters`."""

from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.acceleration.attention.plain import attention
from course_pkg.adapters.accounting import lora_parameters
from course_pkg.adapters.dora import DoRAConfig, DoRALinear
from course_pkg.adapters.ia3 import IA3Config, IA3Linear
from course_pkg.grading.assignments.peft_methods import student
from course_pkg.grading.questions.draws import normal_arrays

Inputs = dict[str, Any]


def by_hand(rng: Random | None) -> Inputs:
    """A decoder with grouped-query attention, a prefix, and the scores of one query."""
    if rng is None:
        case = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14_336}
        case |= {"virtual_tokens": 20, "rank": 8, "batch": 16}
        return {**case, "prefix_scores": [1.0, 0.0], "text_scores": [2.0, 0.5, -1.0]}
    kv_heads, groups = rng.choices([2, 4, 8], k=2)
    hidden = 64 * kv_heads * groups * rng.choice([1, 2])
    scores = [rng.randint(-20, 25) / 10 for _ in range(5)]
    return {
        "layers": rng.randint(12, 48),
        "hidden": hidden,
        "heads": kv_heads * groups,
        "kv_heads": kv_heads,
        "ffn": 128 * rng.randint(hidden // 48, hidden // 32),
        "virtual_tokens": rng.randint(5, 60),
        "rank": rng.choice([4, 8, 16, 32]),
        "batch": rng.randint(4, 40),
        "prefix_scores": scores[:2],
        "text_scores": scores[2:],
    }


def by_hand_expected(case: Inputs) -> Inputs:
    n, layers, hidden, rank = (case[k] for k in ("virtual_tokens", "layers", "hidden", "rank"))
    width = hidden // case["heads"] * case["kv_heads"]  # of one layer's keys, as of its values
    prefix = n * layers * 2 * width
    dora = lora_parameters(width, hidden, rank) + width  # on v_proj
    scores = torch.tensor(case["prefix_scores"] + case["text_scores"]).double()
    return {
        "virtual": [n * hidden, prefix],
        "vectors": [layers * dora, layers * (2 * width + case["ffn"])],
        "cache": 2 * case["batch"] * prefix,  # 16 bits, once for every sequence
        "attention": scores.softmax(0)[:2].sum().item(),
    }


def prefix_expected(inputs: Inputs) -> Tensor:
    """Plain attention with the prefix in front: the text's queries come after all of it."""
    q, k, v = (inputs[name].double()[None] for name in "qkv")
    keys = torch.cat([inputs["prefix_k"].double()[None], k], 2)
    values = torch.cat([inputs["prefix_v"].double()[None], v], 2)
    return attention(q, keys, values, causal=True)[0].float()


def draw_attention(
    rng: Random, size: int, *, text: int = 1, prefix: int = 3, groups: int = 1, d: int = 1
) -> Inputs:
    """Random queries, keys and values; d = 1 hides the scale, and one token the causal mask."""
    heads = 1 + size
    own = (heads, text, d)
    virtual = (heads, prefix, d)
    q = (heads * groups, text, d)
    arrays = normal_arrays(rng, q=q, k=own, v=own, prefix_k=virtual, prefix_v=virtual)
    return {name: 1.5 * array for name, array in arrays.items()}


def prefix_scale(rng: Random, size: int) -> Inputs:
    """One token, and heads of several numbers."""
    return draw_attention(rng, size, d=3 + size)


def prefix_causal(rng: Random, size: int) -> Inputs:
    """A few tokens, in one order."""
    return draw_attention(rng, size, text=3 + size, prefix=2)


def prefix_grouped(rng: Random, size: int) -> Inputs:
    """Two or three query heads for each of several key-value heads."""
    return draw_attention(rng, size + 1, groups=2 + size % 2)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight.data = weight.clone()
    if bias is not None:
        layer.bias.data = bias.clone()
    return layer


class DoRAOfCase(DoRALinear):
    """The course's layer with the weights of a case."""

    def __init__(self, inputs: Inputs) -> None:
        config = DoRAConfig(len(inputs["lora_A"]), inputs["alpha"])
        super().__init__(_linear(inputs["weight"], inputs.get("bias")), config)
        for part, name in zip(self.parts, ("lora_A", "lora_B", "magnitude"), strict=True):
            getattr(self, part)["default"].data = inputs[name].clone()


def dora_expected(inputs: Inputs) -> list[Tensor]:
    """The output of the reference layer, and the gradients of A, B and the magnitude."""
    layer = DoRAOfCase(inputs)
    result = layer(inputs["x"])
    factors = [getattr(layer, part)["default"] for part in layer.parts]
    return student.observed(result, factors)


def merge_expected(inputs: Inputs) -> Tensor:
    return DoRAOfCase(inputs).merged_weight()


def draw_dora(
    rng: Random, size: int, *, magnitude: bool = False, scale: float = 1.0, zero: str = "bias"
) -> Inputs:
    """A layer with DoRA. magnitude: random, else the norms of W + ΔW; zero: names of what is 0."""
    d = 3 + size
    r = 1 + size
    shapes = {"x": (2, 4), "weight": (d, 4), "bias": d, "lora_A": (r, 4), "lora_B": (d, r)}
    arrays = normal_arrays(rng, **shapes, factor=d)
    layer = {name: torch.from_numpy(array) for name, array in arrays.items()}
    factor = layer.pop("factor").abs() + 0.5
    for name in zero.split():
        layer[name].zero_()
    update = scale * layer["lora_B"] @ layer["lora_A"]
    norms = torch.linalg.vector_norm(layer["weight"] + update, dim=1)
    return {**layer, "magnitude": norms * factor if magnitude else norms, "alpha": scale * r}


def draw_weights(rng: Random, size: int, **how: Any) -> Inputs:
    """A layer with DoRA, without an input and a bias."""
    layer = draw_dora(rng, size, **how)
    return {name: value for name, value in layer.items() if name not in ("x", "bias")}


def merge_zero(rng: Random, size: int) -> Inputs:
    """The magnitude is the norms of W + ΔW, which are small; a row is 0."""
    layer = draw_weights(rng, size)
    row = rng.randrange(3)
    for name in ("weight", "lora_B", "magnitude"):
        layer[name] *= 0.1
        layer[name][row] = 0.0
    return layer


def ia3_expected(inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """The weight and the bias that the reference layer has after merging."""
    base = _linear(inputs["weight"], inputs["bias"])
    name = "down_proj" if inputs["feedforward"] else "v_proj"
    layer = IA3Linear(base, IA3Config(), module_name=name)
    layer.ia3_l["default"].data = inputs["vector"].view_as(layer.ia3_l["default"])
    layer.merge()
    return layer.base.weight, layer.base.bias


def draw_ia3(
    rng: Random, size: int, *, feedforward: bool, bias: bool, square: bool = True
) -> Inputs:
    """A layer and a vector: for its inputs in the feed-forward network, else for its outputs."""
    d = 3 + size
    k = d if square else d + 2
    arrays = normal_arrays(rng, weight=(d, k), bias=d, vector=k if feedforward else d)
    if not bias:
        arrays["bias"] = None
    return arrays | {"feedforward": feedforward}


def ia3_bias(rng: Random, size: int) -> Inputs:
    """With a bias, of keys and values and of the feed-forward network."""
    return draw_ia3(rng, size, feedforward=size % 2 == 1, bias=True, square=False)


def counts_expected(inputs: Inputs) -> int:
    rank = inputs["rank"]
    total = 0
    for name, (out, in_) in inputs["shapes"].items():
        lora = lora_parameters(out, in_, rank)
        vector = in_ if name.endswith("down_proj") else out
        counts = {"lora": lora, "dora": lora + out, "adalora": lora + rank, "ia3": vector}
        total += counts[inputs["method"]]
    return total


def draw_counts(rng: Random, size: int, *, method: str) -> Inputs:
    """Rectangular layers: for IA³ keys, values and the last of the feed-forward network."""
    kinds = ["k_proj", "v_proj", "down_proj"]
    names = [f"layers.{i}.{kind}" for i in range(size + 1) for kind in kinds]
    shapes = {name: (rng.randint(8, 200), rng.randint(201, 400)) for name in names}
    return {"method": method, "shapes": shapes, "rank": rng.randint(2, 8)}
