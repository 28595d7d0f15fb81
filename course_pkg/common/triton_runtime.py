"""Triton, the language of the GPU kernels: compiled for a GPU, or interpreted on a CPU.

Triton reads TRITON_INTERPRET when a kernel is defined. Without a CUDA device, importing this module
therefore sets TRITON_INTERPRET=1 for the process, unless you have set it. Where triton is not
installed (macOS, Windows), kernels can be defined, and running one raises an error.
"""

import os

import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on")
MISSING = (
    "triton is not installed: it exists for Linux, and requirements.txt pins the version for it; "
    "the modules without kernels compute the same on every system"
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


def with_adjacent_numbers(tensor: Tensor) -> Tensor:
    """The tensor, copied if the numbers of a row are not next to each other in memory."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def computed(tensor: Tensor) -> Tensor:
    """The tensor in the type that the kernels compute with.

    The interpreter of triton 3.7 multiplies bfloat16 as if its bits were integers.
    """
    return tensor.float() if INTERPRETED and tensor.dtype == torch.bfloat16 else tensor


def require_runnable(tensor: Tensor, name: str) -> None:
    """ValueError unless kernels run where `tensor` is; ImportError without triton."""
    if not INTERPRETED and not tensor.is_cuda:
        raise ValueError(
            f"{name} is on {tensor.device}, and the kernels were compiled for the GPU: move the "
            "tensors there, or start Python with TRITON_INTERPRET=1"
        )
    if not INSTALLED:
        raise ImportError(MISSING)
