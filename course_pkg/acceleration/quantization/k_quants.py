"""llama.cpp's K-blocks, read: 256 weights whose scales are themselves quantized.

A K-block has 8 sub-blocks of 32 weights (Q6_K: 16 of 16). Each has a scale, and in Q4_K and Q5_K a
minimum, in 6 bits (Q6_K: 8 bits), which two fp16 numbers of the block, d and d_min, multiply:

    Q4_K, Q5_K    w = (d · scale) · code − (d_min · minimum)
    Q6_K          w = (d · scale) · (code − 32)

The products in parentheses are rounded to fp32, as llama.cpp does. How a weight's bits are placed
follows from vector instructions: a byte has codes of different sub-blocks. Choosing scales well is
a search of its own (llama.cpp's `make_qkx3_quants`), so this module reads only. `gguf_blocks` has
the formats' sizes and the simpler blocks.

Source: ggml-common.h and ggml-quants.c of llama.cpp, and gguf 0.19.
Chapter: acceleration/quantized-weights.
"""

import torch
from torch import Tensor


def read_q4_k(blocks: Tensor) -> Tensor:
    """Weights of Q4_K blocks, uint8, (n, 144): d, d_min, 12 bytes of scales, 128 of codes.

    Returns fp32, (n, 256).
    """
    d, d_min, packed, codes = _split(blocks, 2, 2, 12, 128)
    scales, minima = _six_bits(packed)
    return _affine(d, scales, d_min, minima, _nibbles(codes, 32))


def read_q5_k(blocks: Tensor) -> Tensor:
    """Weights of Q5_K blocks, uint8, (n, 176): as Q4_K, with 32 bytes of fifth bits before codes.

    Bit i of byte j belongs to weight j of sub-block i. Returns fp32, (n, 256).
    """
    d, d_min, packed, fifth, codes = _split(blocks, 2, 2, 12, 32, 128)
    scales, minima = _six_bits(packed)
    high = (fifth[:, None] >> torch.arange(8, device=blocks.device)[:, None]) & 1  # (n, 8, 32)
    return _affine(d, scales, d_min, minima, _nibbles(codes, 32) | high << 4)


def read_q6_k(blocks: Tensor) -> Tensor:
    """Weights of Q6_K blocks, uint8, (n, 210): low 4 bits, high 2 bits, 16 int8 scales, d.

    Returns fp32, (n, 256).
    """
    low, high, scales, d = _split(blocks, 128, 64, 16, 2)
    shifts = torch.arange(0, 8, 2, device=blocks.device)[:, None]
    high = (high.view(-1, 2, 1, 32) >> shifts) & 3  # (n, 2, 4, 32)
    codes = _nibbles(low, 64).view(-1, 16, 16) | (high << 4).view(-1, 16, 16)
    scales = half(d) * scales.view(torch.int8).float()  # (n, 16)
    return (scales[..., None] * (codes.float() - 32)).flatten(1)


def half(pair: Tensor) -> Tensor:
    """The fp16 numbers of pairs of bytes, (n, 2), as fp32, (n, 1)."""
    return pair.contiguous().view(torch.float16).float()


def _affine(d: Tensor, scales: Tensor, d_min: Tensor, minima: Tensor, codes: Tensor) -> Tensor:
    """scales and minima: (n, 8). codes: (n, 8, 32)."""
    steps = half(d) * scales.float()
    offsets = half(d_min) * minima.float()
    return (steps[..., None] * codes.float() - offsets[..., None]).flatten(1)


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The 8 scales and 8 minima of 6 bits, (n, 8) each, in 12 bytes.

    Bytes 0–3 and 4–7 have the first four scales and minima in their low 6 bits. Bytes 8–11 have the
    low 4 bits of the last four, scales in the low half. Their high 2 bits are on top of bytes 0–7.
    """
    first, second, rest = _split(packed, 4, 4, 4)
    scales = torch.cat([first & 63, rest & 15 | first >> 6 << 4], 1)
    minima = torch.cat([second & 63, rest >> 4 | second >> 6 << 4], 1)
    return scales, minima


def _nibbles(codes: Tensor, run: int) -> Tensor:
    """4-bit codes, (n, 8, 32): the low halves of a run of bytes, then the high halves."""
    runs = codes.reshape(len(codes), -1, run)
    return torch.stack([runs & 15, runs >> 4], 2).view(len(codes), 8, 32)


def _split(blocks: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    return tuple(part.contiguous() for part in blocks.split(sizes, dim=1))
