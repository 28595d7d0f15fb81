"""Triton, the language of the GPU kernels: compiled for a GPU, or interpreted on a CPU.

Triton reads TRITON_INTERPRET when a kernel is defined. Without a CUDA device, importing this module
therefore sets TRITON_INTERPRET=1 for the process, unless you have set it. The interpreter runs a
kernel's programs one after another in NumPy, thousands of times slower.

Where triton is not installed (macOS, Windows), stand-ins let the kernels be defined, and running
one raises an error that says so. Chapter: acceleration/flash-attention.
"""

import os
from typing import NamedTuple

import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on")
MISSING = (
    "triton is not installed: it exists for Linux, and requirements.txt pins the version for it; "
    "course_pkg.attention.flash computes the same on every system"
)
TYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_HEAD_DIM = 128


class MissingTriton:
    """Stands for triton where it is not installed: definitions pass, running a kernel raises.

    >>> MissingTriton().jit(len)[(1,)]
    Traceback (most recent call last):
      ...
    ImportError: triton is not installed: ...
    """

    def __getattr__(self, name: str) -> "MissingTriton":
        if name.startswith("__"):  # Python's own questions, such as whether there is a docstring
            raise AttributeError(name)
        return self

    def __call__(self, *args: object, **kwargs: object) -> "MissingTriton":
        return self

    def __getitem__(self, grid: object) -> None:
        raise ImportError(MISSING)


try:
    import triton
    import triton.language as tl

    # The operators inside tl.max and tl.sum. Those two are kernels themselves, so the interpreter
    # can't run them if triton was imported before TRITON_INTERPRET was set; tl.reduce always works.
    from triton.language.standard import _elementwise_max as larger
    from triton.language.standard import _sum_combine as plus
except ImportError:
    triton = tl = larger = plus = MissingTriton()

INSTALLED = not isinstance(triton, MissingTriton)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


class Rows(NamedTuple):
    """A tensor as a kernel sees it: the address of its first number, and how far apart rows are.

    batch, head, row: steps between neighbors, counted in numbers. Numbers of a row are adjacent.
    """

    pointer: Tensor
    batch: int
    head: int
    row: int


def rows(tensor: Tensor) -> Rows:
    """Where the rows of a tensor are: (batch, heads, tokens, head_dim), or (batch, heads, tokens).

    >>> rows(torch.empty(2, 3, 5, 8))[1:], rows(torch.empty(2, 3, 5))[1:]
    ((120, 40, 8), (15, 5, 1))
    """
    return Rows(tensor, *tensor.stride()[:3])


def token_rows(tensor: Tensor) -> Rows:
    """The same for the packed tokens of several sequences: (tokens, heads, …)."""
    return Rows(tensor, 0, tensor.stride(1), tensor.stride(0))


def with_adjacent_numbers(tensor: Tensor) -> Tensor:
    """The tensor, copied if the numbers of a row are not next to each other in memory."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def computed(tensor: Tensor) -> Tensor:
    """The tensor in the type that the kernels compute with.

    The interpreter of triton 3.7 multiplies bfloat16 as if its bits were integers.
    """
    return tensor.float() if INTERPRETED and tensor.dtype == torch.bfloat16 else tensor


def head_dims(head_dim: int) -> dict[str, int]:
    """The kernels' arguments for a head_dim: tiles have a power of two of columns, at least 16."""
    return {"HEAD_DIM": head_dim, "PADDED_DIM": max(16, triton.next_power_of_2(head_dim))}


def check_kernel_input(query: Tensor, names: str, instead: str) -> None:
    """Raise unless the kernels take the type, head_dim and device of `query`, and triton is there.

    names: what the message calls the tensors; instead: what computes the same.
    Raises TypeError, ValueError or ImportError.
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
    if not INTERPRETED and not query.is_cuda:
        raise ValueError(
            f"query is on {query.device}, and the kernels were compiled for the GPU: move the "
            "tensors there, or start Python with TRITON_INTERPRET=1"
        )
    if not INSTALLED:
        raise ImportError(MISSING)


def tile_shapes(*shapes: tuple[int, int, int, int]) -> list:
    """The configurations of a kernel: only one, of 16 × 16, in the interpreter.

    shapes: (queries, keys, warps, stages) of a tile, where stages is how many tiles the pipeline
    holds that loads ahead. The first is for float32, the second for short sequences; the autotuner
    chooses among the second and all that follow.
    """
    return [
        triton.Config({"BLOCK_QUERIES": i, "BLOCK_KEYS": j}, num_warps=warps, num_stages=stages)
        for i, j, warps, stages in ([(16, 16, 4, 1)] if INTERPRETED else shapes)
    ]


def worth_trying(configs: list, arguments: dict, **_: object) -> list:
    """The configurations to time: one for float32 or up to 512 tokens, otherwise several.

    arguments: the kernel's, with `tuning`, see `tuning_key`.
    """
    tokens, size = arguments["tuning"]
    if size == 4:
        return configs[:1]
    return configs[1:] if tokens > 512 else configs[1:2]


def tuning_key(tokens: int, tensor: Tensor) -> tuple[int, int]:
    """What the autotuner tells apart: tokens, up to a power of two, and bytes per number."""
    return max(512, 1 << (tokens - 1).bit_length()), tensor.element_size()
