"""torch's CPU kernels for a few tokens: bf16 activations times weights in 8 or 4 bits.

One token reads each weight once, so the time is that of reading and converting weights. These
kernels convert codes in registers. From some tokens on, converting the weight to fp32 first is
faster, because the conversion is then a small part, and products in fp32 are fast; in 4 bits this
comes later, because unpacking takes longer.

The 8-bit kernel takes the codes as they are. The 4-bit kernel has an order of its own, and its
weights are  scale · (code − 8) + offset. Both take their scales in bf16.

Not here: the reason why a product in 8 bits on both sides is not used (`int8_matmul`), and GPUs
(`w4a16_triton`). Chapter: acceleration/quantized-weights.
"""

import torch
from torch import Tensor

from course_pkg.acceleration.quantization.cpu_kernels import run_kernel

FEW = {8: 12, 4: 64}  # by bits, up to how many tokens these kernels are the fastest way
MULTIPLE = 32  # in shapes that it does not divide, the kernels read other memory
GROUPS = (32, 64, 128, 256)  # group sizes of the 4-bit kernel
MIDDLE = 8  # the 4-bit kernel's zero point


def takes(x: Tensor, bits: int) -> bool:
    """Whether x, (..., k), is a few tokens in bf16 on a CPU, and needs no gradient.

    bits: 8 or 4, those of the weight.

    >>> x = torch.zeros(20, 64, dtype=torch.bfloat16)
    >>> takes(x, bits=8), takes(x, bits=4), takes(x.float(), bits=4)
    (False, True, False)
    """
    few = x.dtype == torch.bfloat16 and 0 < x.numel() <= FEW[bits] * x.shape[-1]
    return few and x.is_cpu and not x.requires_grad


def fits(shape: torch.Size, group_size: int | None = None) -> bool:
    """Whether the kernels take a weight of this shape, and in 4 bits this group size.

    >>> fits(torch.Size((96, 64))), fits(torch.Size((96, 60))), fits(torch.Size((96, 64)), 16)
    (True, False, False)
    """
    whole = all(size > 0 and size % MULTIPLE == 0 for size in shape)
    return whole and group_size in (None, *GROUPS)


def int8_product(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """x Ŵᵀ, (..., n), in bf16, for Ŵ = scale · codes.

    x: bf16, (..., k). codes: int8, (n, k), of a shape that `fits`. scale: bf16, (n,).

    >>> codes = torch.ones(32, 32, dtype=torch.int8)
    >>> x = torch.ones(1, 32, dtype=torch.bfloat16)
    >>> int8_product(x, codes, torch.full((32,), 0.5, dtype=torch.bfloat16))[0, 0].item()
    16.0
    """
    rows = x.reshape(-1, x.shape[-1])
    result = run_kernel(torch._weight_int8pack_mm, rows, codes, scale)
    return result.view(*x.shape[:-1], len(codes))


class Int4Weight:
    """A weight in groups of 4 bits, w = scale · code + offset, in the kernel's order.

    codes: integers from 0 to 15, (n, k). scale and offset: (n, groups), of a group size in GROUPS.
    They are copied: 4 bits per weight, and two bf16 numbers per group.

    >>> codes = torch.full((32, 32), 9)
    >>> weight = Int4Weight(codes, torch.full((32, 1), 0.5), torch.full((32, 1), -3.5))
    >>> weight.product(torch.ones(1, 32, dtype=torch.bfloat16))[0, 0].item()  # 32 · (4.5 − 3.5)
    32.0
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
