"""`flash-attention`: the cases of its questions; right values: `acceleration.attention`."""

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from course_pkg.acceleration.attention.decode import merge
from course_pkg.acceleration.attention.io_complexity import flash_cost, plain_cost
from course_pkg.acceleration.attention.masks import tile_state
from course_pkg.acceleration.attention.plain import attention
from course_pkg.grading.assignments.flash_attention import student
from course_pkg.grading.questions.draws import normal_arrays, numpy_rng

Inputs = dict[str, Any]


def by_hand(rng: Random | None) -> Inputs:
    """Four scores and four values. Two of the scores after the first are a new maximum."""
    if rng is None:
        return {"scores": [1.0, 3.0, 2.0, 3.5], "values": [2, -1, 4, 1]}
    scores = [rng.randint(1, 20) / 10]  # a maximum of 0 hides mistakes
    lower = rng.randint(1, 3)
    for i in range(1, 4):
        difference = rng.randint(3, 25) / 10
        scores.append(round(max(scores) + (-difference if i == lower else difference), 1))
    values = rng.sample([n for n in range(-9, 10) if n], 4)
    return {"scores": scores, "values": values}


def by_hand_expected(case: Inputs) -> Inputs:
    scores = torch.tensor(case["scores"]).double()
    maxima = scores.cummax(0).values
    sums = [(scores[: n + 1] - maxima[n]).exp().sum() for n in range(4)]
    output = scores.softmax(0) @ torch.tensor(case["values"]).double()
    return {
        "maxima": [max(case["scores"][:n]) for n in range(1, 5)],
        "factors": (maxima[:-1] - maxima[1:]).exp().tolist(),
        "sums": torch.stack(sums).tolist(),
        "result": (output.item(), scores.logsumexp(0).item()),
    }


def merge_expected(inputs: Inputs) -> Inputs:
    """The parts as splits of one head; the rows of an empty part are set to 0 for the reference."""
    lses = torch.stack([inputs["lse_a"], inputs["lse_b"]]).double()
    outputs = torch.stack([inputs["output_a"], inputs["output_b"]]).double()
    output, lse = merge(outputs.masked_fill(lses[..., None] == -torch.inf, 0), lses)
    return student.described((output.float(), lse.float()))


def draw_parts(rng: Random, size: int, *, shift: float = 0.0, empty: str = "") -> Inputs:
    """Two partial results; `empty` names the parts that are empty in a row ("ab": in the same)."""
    rows = 2 + size
    two = (rows, 2)
    inputs = normal_arrays(rng, output_a=two, lse_a=rows, output_b=two, lse_b=rows)
    for part in "ab":
        inputs[f"lse_{part}"] = 2 * inputs[f"lse_{part}"] + shift
    row = rng.randrange(rows)
    for part in empty:
        inputs[f"lse_{part}"][row] = -math.inf
    return inputs


def merge_stable(rng: Random, size: int) -> Inputs:
    """Log-sum-exps whose exp is infinite or 0 in float32."""
    return draw_parts(rng, size, shift=rng.choice([-1, 1]) * rng.uniform(200, 900))


def merge_one_empty(rng: Random, size: int) -> Inputs:
    """One part has seen no key in some row."""
    return draw_parts(rng, size, empty="ab"[size % 2])


def forward_expected(inputs: Inputs) -> Inputs:
    """Plain attention in double precision; an answer in tiles makes no large tensor."""
    q, k, v = (inputs[name].double()[None, None] for name in "qkv")
    output, lse = attention(q, k, v, causal=inputs["causal"], return_lse=True)
    return student.described((output[0, 0].float(), lse[0, 0].float())) | {
        "tiles that were not computed": [],
        "a tensor that is too large": "none",
        "a row of scores for all keys": "none",
    }


def _head(
    rng: Random,
    queries: int,
    keys: int,
    blocks: Sequence[int],
    *,
    causal: bool = False,
    watched: bool = False,
) -> Inputs:
    inputs = normal_arrays(rng, q=(queries, 4), k=(keys, 4), v=(keys, 3))
    inputs |= {"block_queries": blocks[0], "block_keys": blocks[1], "causal": causal}
    return inputs | {"_watched": watched}


def forward_output(rng: Random, size: int) -> Inputs:
    """Whole blocks; the first case has one tile."""
    block = rng.randint(2, 3), rng.randint(2, 4)
    return _head(rng, block[0] * max(1, size), block[1] * (1 + size), block)


def forward_ragged(rng: Random, size: int) -> Inputs:
    """The last blocks are shorter, or a block is larger than everything."""
    queries = rng.choice([5, 7])
    keys = rng.choice([5, 7, 9])
    return _head(rng, queries, keys, [(2, 5 * keys), (10, 4), (3, 2)][size % 3])


def forward_causal(rng: Random, size: int) -> Inputs:
    """As many queries as keys, or fewer; whole blocks."""
    return _head(rng, 4, 4 + 2 * size, (2, 2), causal=True)


def forward_empty(rng: Random, size: int) -> Inputs:
    """More queries than keys, so that the first ones see no key; whole blocks."""
    return _head(rng, 6 + 2 * size, 4, (2, 2), causal=True)


def forward_stable(rng: Random, size: int) -> Inputs:
    """Scores in the hundreds, whose exp is infinite, or all below -100, where it is 0."""
    inputs = _head(rng, 4, 6 + 2 * size, (2, 2))
    inputs["q"][:, 0] = rng.uniform(25, 40)
    inputs["k"][:, 0] = -16 if size % 2 else 16
    return inputs


def forward_memory(rng: Random, size: int) -> Inputs:
    """Nine whole tiles, larger in both directions than a head has dimensions, and not square."""
    blocks = rng.sample(range(5, 9), 2)
    return _head(rng, 3 * blocks[0], 3 * blocks[1], blocks, causal=size == 1, watched=True)


def tiles_expected(inputs: Inputs) -> str:
    corners = (inputs[name] for name in ("i0", "i1", "j0", "j1"))
    return tile_state(*corners, inputs["keys"] - inputs["queries"], True, None)


def draw_tile(rng: Random, size: int, *, shifted: bool = False, edges: bool = False) -> Inputs:
    """A tile in a random state, off the diagonal; or one with a corner on it, or just above it."""
    state = rng.choice(["skip", "partial", "full"])
    edge = rng.randrange(4)
    while True:
        queries = rng.randint(24, 40)
        keys = queries + (rng.choice([-1, 1]) * rng.randint(3, 12) if shifted else 0)
        i0 = rng.randrange(queries - 8)
        j0 = rng.randrange(keys - 8)
        i1 = i0 + rng.randint(2, 8)
        j1 = j0 + rng.randint(2, 8)
        inputs = {"i0": i0, "i1": i1, "j0": j0, "j1": j1, "queries": queries, "keys": keys}
        corners = j0 - (i1 - 1) - (keys - queries), (j1 - 1) - i0 - (keys - queries)
        if edges and corners[edge // 2] == edge % 2:
            return inputs
        if not edges and tiles_expected(inputs) == state and not {*corners} & {0, 1}:
            return inputs


def moved_expected(inputs: Inputs) -> tuple[int, int]:
    """Bytes of plain and of flash attention; lse has 4 bytes per row."""
    queries, keys, itemsize = inputs["queries"], inputs["keys"], inputs["itemsize"]
    sizes = queries, keys, inputs["head_dim"]
    plain = plain_cost(*sizes)
    flash = flash_cost(*sizes, block_queries=inputs["block_queries"], block_keys=keys)
    return plain.moved * itemsize, (flash.moved - queries) * itemsize + 4 * queries


def draw_sizes(rng: Random, size: int, *, ragged: bool = False) -> Inputs:
    """Sizes of an attention in blocks. ragged: the last block of queries is not full."""
    block = 16 * rng.randint(1, 8)
    queries = block * rng.randint(2, 9) + (rng.randint(1, block - 1) if ragged else 0)
    return {
        "queries": queries,
        "keys": 16 * rng.randint(8, 99),
        "head_dim": rng.choice([32, 64, 128]),
        "block_queries": block,
        "itemsize": 1 + size % 2,
    }


def backward_expected(inputs: Inputs) -> dict[str, Tensor]:
    """The formulas of the task, in double precision."""
    names = ("q", "k", "v", "output", "lse", "d_output")
    q, k, v, output, lse, d_output = (inputs[name].double() for name in names)
    p = torch.exp(q @ k.T / math.sqrt(q.shape[1]) - lse[:, None])
    delta = (d_output * output).sum(1)
    ds = p * (d_output @ v.T - delta[:, None]) / math.sqrt(q.shape[1])
    results = {"p": p, "dv": p.T @ d_output, "delta": delta, "dq": ds @ k, "dk": ds.T @ q}
    return {name: tensor.float() for name, tensor in results.items()}


def draw_block(rng: Random, size: int) -> Inputs:
    """A block of keys, and the results of a row that has other keys too."""
    rows = 2 + size
    arrays = normal_arrays(rng, q=(rows, 4), k=(6, 4), v=(6, 3), d_output=(rows, 3))
    q, k, v, d_output = map(torch.from_numpy, arrays.values())
    output, lse = attention(q[None, None], k[None, None], v[None, None], return_lse=True)
    j = rng.randint(2, 4)
    inputs = {"q": q, "k": k[:j], "v": v[:j], "output": output[0, 0], "lse": lse[0, 0]}
    return inputs | {"d_output": d_output}


def cache_expected(inputs: Inputs) -> Inputs:
    """The rows of the whole causal attention, of the first tokens and of those after truncate."""

    def whole(x: Tensor) -> Tensor:
        x = (x + inputs["positions"][: len(x)]) * inputs["_drift"][: len(x), None]
        q, k, v = ((x @ inputs[name])[None, None] for name in ("w_q", "w_k", "w_v"))
        return attention(q, k, v, causal=True)[0, 0]

    outputs = list(whole(inputs["x"]).split(inputs["sizes"]))
    if (kept := inputs["kept"]) is not None:
        both = torch.cat([inputs["x"][:kept], inputs["again"]])
        outputs += whole(both)[kept:].split(1)
    return {"the outputs of the steps": outputs}


def _steps(rng: Random, sizes: list[int], kept: int | None = None, drift: float = 0.0) -> Inputs:
    tokens = sum(sizes)
    shapes = {"x": (tokens, 3), "w_q": (3, 4), "w_k": (3, 4), "w_v": (3, 2)}
    shapes |= {"positions": (tokens + 4, 3), "again": (0 if kept is None else 2, 3)}
    inputs = normal_arrays(rng, **shapes) | {"sizes": sizes, "kept": kept}
    factors = 1 + drift * numpy_rng(rng).uniform(-1, 1, 4 * tokens + 5)
    return inputs | {"_drift": factors.astype("float32")}


def cache_whole(rng: Random, size: int) -> Inputs:
    """One step with all tokens."""
    return _steps(rng, [2 + size])


def cache_steps(rng: Random, size: int) -> Inputs:
    """One token at a time."""
    return _steps(rng, [1] * (2 + size))


def cache_several(rng: Random, size: int) -> Inputs:
    """Several tokens, and then several more."""
    return _steps(rng, [1 + rng.randint(1, 2) for _ in range(2 + size)])


def cache_once(rng: Random, size: int) -> Inputs:
    """A prompt and further tokens; a token that is projected again gives other numbers."""
    return _steps(rng, [2 + rng.randrange(4), *[1] * (2 + size)], drift=0.6)


def cache_truncate(rng: Random, size: int) -> Inputs:
    """Three tokens or more; the first are kept, perhaps none."""
    return _steps(rng, [1] * (4 + size), [1, 2, 0][size % 3])
