"""torch's CPU kernels for products of a few bf16 tokens with weights in 8 or 4 bits.

One token reads each weight once, so the time is that of reading and converting weights, and these
kernels convert codes in registers. From some tokens on, converting the weight to fp32 first is
faster; in 4 bits this comes later, because unpacking takes longer. The 4-bit kernel has an order of
its own, and its weights are  scale · (code − 8) + offset. Scales are bf16.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


def run_kernel(kernel: Callable[..., Result], *arguments: object) -> Result:
    """``kernel(*arguments)``, with each tensor laid out as a new tensor of its shape is.

    Kernels get an address and a stride, and check little. Two layouts are traps, because
    `is_contiguous()` accepts them: the stride of a dimension of size one may be anything, and where
    all sizes but one are one, an expanded tensor has a stride of 0. `torch._int_mm` computes
    nothing for one column (pytorch issue 195066), so that the result is what its memory held
    before, and `torch._weight_int8pack_mm` reads other memory where the scale is expanded.
    """
    return kernel(
        *[_as_new(argument) if isinstance(argument, Tensor) else argument for argument in arguments]
    )


def _as_new(x: Tensor) -> Tensor:
    x = x.contiguous()
    shape = x.shape
    if 1 not in shape or x.stride() == (shape[-1], 1):  # the usual row, (1, k), is as it should be
        return x
    return x.view(-1).view(shape)


FEW = {8: 12, 4: 64}  # by bits, up to how many tokens these kernels are the fastest way
MULTIPLE = 32  # in shapes that it does not divide, the kernels read other memory
GROUPS = (32, 64, 128, 256)  # group sizes of the 4-bit kernel
MIDDLE = 8  # the 4-bit kernel's zero point


def takes(x: Tensor, bits: int) -> bool:
    """Whether x, (..., k), is a few tokens in bf16 on a CPU, and needs no gradient."""
    few = x.dtype == torch.bfloat16 and 0 < x.numel() <= FEW[bits] * x.shape[-1]
    return few and x.is_cpu and not x.requires_grad


def fits(shape: torch.Size, group_size: int | None = None) -> bool:
    """Whether the kernels take a weight of this shape, and in 4 bits this group size."""
    whole = all(size > 0 and size % MULTIPLE == 0 for size in shape)
    return whole and group_size in (None, *GROUPS)


def int8_product(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """x Ŵᵀ, (..., n), in bf16, for bf16 x, (..., k), and Ŵ = scale · codes."""
    rows = x.reshape(-1, x.shape[-1])
    result = run_kernel(torch._weight_int8pack_mm, rows, codes, scale)
    return result.view(*x.shape[:-1], len(codes))


class Int4Weight:
    """A weight in groups of 4 bits, w = scale · code + offset, in the kernel's order.

    Args:
        codes: integers from 0 to 15, (n, k).
        scale, offset: (n, groups), of a group size in GROUPS.
    """

    def __init__(self, codes: Tensor, scale: Tensor, offset: Tensor):
        self.rows, columns = codes.shape
        self.group_size = columns // scale.shape[1]
        self.codes = run_kernel(torch._convert_weight_to_int4pack_for_cpu, codes.int(), 1)
        scale = scale.float()
        pairs = torch.stack([scale, offset.float() + MIDDLE * scale], -1)  # (n, groups, 2)
        self.scales = pairs.transpose(0, 1).to(torch.bfloat16).contiguous()

    def product(self, x: Tensor) -> Tensor:
        """x Ŵᵀ, (..., n), in bf16; x: bf16, (..., k)."""
        rows = x.reshape(-1, x.shape[-1])
        product = torch._weight_int4pack_mm_for_cpu
        result = run_kernel(product, rows, self.codes, self.group_size, self.scales)
        return result.view(*x.shape[:-1], self.rows)
