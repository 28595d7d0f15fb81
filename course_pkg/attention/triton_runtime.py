"""Triton, the language of the GPU kernels: compiled for a GPU, or interpreted on a CPU.

Triton decides when a kernel is defined whether it will be compiled or interpreted, and reads
TRITON_INTERPRET for that. Without a CUDA device, importing this module therefore sets
TRITON_INTERPRET=1 for the process, unless you have set it. The interpreter runs a kernel's
programs one after another in NumPy: thousands of times slower, with the same steps. It doesn't
matter whether other libraries have imported triton before.

Where triton is not installed (macOS, Windows), stand-ins let the kernels be defined, and running
one raises an error that says so. Chapter: acceleration/flash-attention.
"""

import os
from typing import NamedTuple

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on")
MISSING = (
    "triton is not installed: it exists for Linux, and requirements.txt pins the version for it; "
    "course_pkg.attention.flash computes the same on every system"
)


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


class Rows(NamedTuple):
    """A tensor as a kernel sees it: the address of its first number, and how far apart rows are.

    batch, head, row: steps between neighbors, counted in numbers. Numbers of a row are adjacent.
    """

    pointer: torch.Tensor
    batch: int
    head: int
    row: int


def rows(tensor: torch.Tensor) -> Rows:
    """Where the rows of a tensor are, for a kernel.

    tensor: (batch, heads, tokens, head_dim), or packed (tokens, heads, head_dim), where a
    sequence is found by its first row and the step from batch to batch is 0. The numbers of
    a row must be adjacent. Chapter: acceleration/flash-attention.

    >>> rows(torch.empty(2, 3, 5, 8))[1:]
    (120, 40, 8)
    >>> rows(torch.empty(5, 3, 8))[1:]
    (0, 8, 24)
    """
    if tensor.dim() == 3:
        return Rows(tensor, 0, tensor.stride(1), tensor.stride(0))
    return Rows(tensor, *tensor.stride()[:3])


def tiles(*shapes: tuple[int, int, int, int]) -> list:
    """The configurations of a kernel: only one, of 16 × 16, in the interpreter.

    shapes: (queries, keys, warps, stages) of a tile, where stages is how many tiles the pipeline
    holds that loads ahead. The first is for float32, the second for short sequences; the autotuner
    chooses among the second and all that follow. Chapter: acceleration/flash-attention.
    """
    return [
        triton.Config({"BLOCK_QUERIES": i, "BLOCK_KEYS": j}, num_warps=warps, num_stages=stages)
        for i, j, warps, stages in ([(16, 16, 4, 1)] if INTERPRETED else shapes)
    ]


def worth_trying(configs: list, arguments: dict, **_: object) -> list:
    """The configurations to time: one for float32 or up to 512 tokens, otherwise several.

    arguments: the kernel's, with `tuning`, see `tuning_key`. Chapter: acceleration/flash-attention.

    >>> worth_trying(["float32", "short", "large"], {"tuning": (1024, 2)})
    ['short', 'large']
    """
    tokens, size = arguments["tuning"]
    if size == 4:
        return configs[:1]
    return configs[1:] if tokens > 512 else configs[1:2]


def tuning_key(tokens: int, tensor: torch.Tensor) -> tuple[int, int]:
    """What the autotuner tells apart: tokens, rounded up to a power of two, and bytes per number.

    Chapter: acceleration/flash-attention.

    >>> tuning_key(1000, torch.empty(1))
    (1024, 4)
    """
    return max(512, 1 << (tokens - 1).bit_length()), tensor.element_size()
