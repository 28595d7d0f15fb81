"""`flash-attention`, in the student's process: how some answers are called, and what is observed.

What `ShapeRecorder` reports can be forged by a program in the same process.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from course_pkg.grading.questions.calling import WrongUse, require_type
from course_pkg.grading.questions.comparators import wrong_type

OUTSIDE = {"numpy", "__array__", "tolist", "__dlpack__", "data_ptr"}  # lead out of torch


class ShapeRecorder(TorchDispatchMode):
    """Keeps the shape of every tensor that an operation gives.

    It sees what reaches torch's dispatcher, also while torch functions are disabled.
    tile: rows and columns; tensors with as many numbers are copied.
    """

    def __init__(self, *tile: int) -> None:
        super().__init__()
        self.tile = tile
        self.tiles: list[Tensor] = []
        self.shapes: set[tuple[bool, torch.Size]] = set()  # with whether it is floating-point

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                floating = tensor.is_floating_point()
                self.shapes.add((floating, tensor.shape))
                if floating and tensor.numel() == math.prod(self.tile):
                    self.tiles.append(tensor.detach().clone())
        return result

    def larger_than(self, numbers: int) -> str:
        """The shape of the largest tensor, if it held more numbers than that; else "none"."""
        largest = max((shape for _, shape in self.shapes), key=torch.Size.numel, default=None)
        if largest is None or largest.numel() <= numbers:
            return "none"
        return f"one of shape {tuple(largest)}; no more than {numbers} numbers are allowed"

    def not_computed(self, q: Tensor, k: Tensor, causal: bool) -> list[str]:
        """The tiles without a mask whose scores, in any unit, were in no tensor."""
        rows, columns = self.tile
        tiles = [tile.reshape(rows, columns) for tile in self.tiles]
        tiles += [tile.reshape(columns, rows).T for tile in self.tiles]
        missing = []
        for i in range(0, len(q), rows):
            for j in range(0, len(k), columns):
                masked = causal and j + columns > i + len(k) - len(q) + 1
                scores = (q[i : i + rows] @ k[j : j + columns].T).flatten()
                alike = (cosine_similarity(scores, t.flatten(), dim=0) > 0.999 for t in tiles)
                if not masked and not any(alike):
                    missing.append(f"queries {i}-{i + rows - 1}, keys {j}-{j + columns - 1}")
        return missing

    def row_of(self, keys: int, *dims: int) -> str:
        """A floating-point shape with `keys` rows, and as columns none of `dims`; else "none"."""
        shapes = sorted(
            tuple(shape)
            for floating, shape in self.shapes
            if floating and keys in shape and shape.numel() // keys not in dims
        )
        return f"one of shape {shapes[0]}" if shapes else "none"


class CallRecorder(TorchFunctionMode):
    """Keeps the names of the functions of torch that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def merge(answer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """What `merge(output_a, lse_a, output_b, lse_b)` gives."""
    names = ("output_a", "lse_a", "output_b", "lse_b")
    return described(answer(*(inputs[name] for name in names)))


def described(result: Any) -> dict[str, Any]:
    """An output and its log-sum-exp; what is not finite is listed apart, so that it compares."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise WrongUse(wrong_type("a pair (output, lse)", result))
    output, lse = (require_type(t, Tensor, "two tensors, output and lse") for t in result)
    empty = lse == -torch.inf
    bad = ~torch.isfinite(output)
    return {
        "rows of the output with NaN or infinity": sorted({i for i, *_ in bad.nonzero().tolist()}),
        "the output": output.masked_fill(bad, 0),
        "the log-sum-exp": lse.masked_fill(empty, 0),
        "indices where lse is -inf": empty.flatten().nonzero()[:, 0].tolist(),
    }


def forward(answer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """What `flash_forward(…)` gives and, in the cases about memory, which tensors it made."""
    q, k, v = (inputs[name] for name in "qkv")
    rows = inputs["block_queries"]
    columns = inputs["block_keys"]
    if not inputs["_watched"]:
        return described(answer(q, k, v, rows, columns, inputs["causal"]))
    with CallRecorder() as called, ShapeRecorder(rows, columns) as sizes:
        result = answer(q, k, v, rows, columns, inputs["causal"])
    outputs = described(result)
    if "scaled_dot_product_attention" in called.names:
        raise WrongUse("you called torch's own attention: compute the tiles yourself")
    if outside := sorted(called.names & OUTSIDE):
        raise WrongUse(
            f"you took the numbers out of torch (`{outside[0]}`): compute the tiles with torch, so "
            "that their sizes can be seen"
        )
    allowed = max(*(t.numel() for t in (q, k, v)), len(q) * v.shape[1], rows * columns)
    return outputs | {
        "tiles that were not computed": sizes.not_computed(q, k, inputs["causal"]),
        "a tensor that is too large": sizes.larger_than(allowed),
        "a row of scores for all keys": sizes.row_of(len(k), q.shape[1], v.shape[1]),
    }


def backward(answer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """What `backward_block(…)` gives, by name."""
    names = ("p", "dv", "delta", "dq", "dk")
    arguments = ("q", "k", "v", "output", "lse", "d_output")
    outputs = answer(*(inputs[name] for name in arguments))
    if not isinstance(outputs, tuple | list) or len(outputs) != len(names):
        raise WrongUse(wrong_type(f"a tuple ({', '.join(names)})", outputs))
    return dict(zip(names, outputs, strict=True))


def cache(answer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """What `CachedAttention` gives: steps of these sizes, `truncate`, then one token at a time.

    `project` multiplies each token that it gets by the next factor of `_drift`. If these are not 1,
    the outputs are right only if every token was projected once, in order.
    """
    drift = inputs["_drift"]
    projected = 0

    def project(x: Tensor) -> tuple[Tensor, ...]:
        nonlocal projected
        tokens = x.shape[:-1].numel()  # 1 for a token as a vector
        factors = drift[torch.arange(projected, projected + tokens) % len(drift)]
        projected += tokens
        x = x * factors.reshape(*x.shape[:-1], 1)
        return tuple(x @ inputs[name] for name in ("w_q", "w_k", "w_v"))

    layer = answer(project, inputs["positions"])
    outputs = []

    def step(x: Tensor) -> None:
        outputs.append(require_type(layer.step(x), Tensor, "a tensor from step"))

    for x in inputs["x"].split(inputs["sizes"]):
        step(x)
    if inputs["kept"] is not None:
        layer.truncate(inputs["kept"])
        for x in inputs["again"].split(1):
            step(x)
    return {"the outputs of the steps": outputs}
