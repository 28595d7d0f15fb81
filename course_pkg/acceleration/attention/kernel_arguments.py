"""What attention's kernels are called with: addresses, padded sizes, tiles, and the checks."""

from typing import NamedTuple

import torch
from torch import Tensor

from course_pkg.common.triton_runtime import INTERPRETED, require_runnable, tl, triton

TYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_HEAD_DIM = 128
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


class Rows(NamedTuple):
    """A tensor as a kernel sees it: its address, and how many numbers neighbors are apart."""

    pointer: Tensor
    batch: int
    head: int
    row: int


def rows(tensor: Tensor) -> Rows:
    """Where the rows of a tensor, (batch, heads, tokens, …), are."""
    return Rows(tensor, *tensor.stride()[:3])


def token_rows(tensor: Tensor) -> Rows:
    """The same for the packed tokens of several sequences: (tokens, heads, …)."""
    return Rows(tensor, 0, tensor.stride(1), tensor.stride(0))


def head_dims(head_dim: int) -> dict[str, int]:
    """The kernels' arguments for a head_dim: tiles have a power of two of columns, at least 16."""
    return {"HEAD_DIM": head_dim, "PADDED_DIM": max(16, triton.next_power_of_2(head_dim))}


def check_kernel_input(query: Tensor, names: str, instead: str) -> None:
    """Raise unless the kernels take `query`, and triton is there.

    Messages call the tensors `names`, and say what computes the same `instead`.
    """
    if query.dtype not in TYPES:
        raise TypeError(
            f"{names} have type {query.dtype}: the kernels take float16, bfloat16 or float32; "
            f"convert them, or use {instead}"
        )
    if query.shape[-1] > LARGEST_HEAD_DIM:
        raise ValueError(
            f"head_dim is {query.shape[-1]}: the kernels take at most {LARGEST_HEAD_DIM}, because "
            f"larger tiles don't fit into registers; use {instead}"
        )
    require_runnable(query, "query")


def tile_shapes(*shapes: tuple[int, int, int, int]) -> list:
    """The configurations of a kernel: only one, of 16 × 16, in the interpreter.

    Args:
        shapes: (queries, keys, warps, stages) of a tile, where stages is how many tiles the
            pipeline holds that loads ahead. The first is for float32, the second for short
            sequences; the autotuner chooses among the second and all that follow.
    """
    return [
        triton.Config({"BLOCK_QUERIES": i, "BLOCK_KEYS": j}, num_warps=warps, num_stages=stages)
        for i, j, warps, stages in ([(16, 16, 4, 1)] if INTERPRETED else shapes)
    ]


def worth_trying(configs: list, arguments: dict, **_: object) -> list:
    """The configurations to time: one for float32 or up to 512 tokens, otherwise several."""
    tokens, size = arguments["tuning"]
    if size == 4:
        return configs[:1]
    return configs[1:] if tokens > 512 else configs[1:2]


def tuning_key(tokens: int, tensor: Tensor) -> tuple[int, int]:
    """What the autotuner tells apart: tokens, up to a power of two, and bytes per number."""
    return max(512, 1 << (tokens - 1).bit_length()), tensor.element_size()
