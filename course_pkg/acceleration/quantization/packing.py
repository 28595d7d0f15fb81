"""Codes of 1 to 8 bits in bytes: eight codes of b bits take b bytes.

The first code has the lowest bits of the first byte; a code may cross into the next byte.

Chapter: acceleration/quantized-inference.
"""

import torch
from torch import Tensor

from course_pkg.common.arguments import require_integer


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes along their last dimension, whose size becomes ceil(n / 8) · bits.

    codes: integers in [0, 2^bits), (..., n); a last group of fewer than eight is filled with zeros.
    Returns uint8. Raises ValueError for other codes or bits.

    >>> pack(torch.tensor([1, 2, 3, 0, 0, 0, 0, 0]), 3).tolist()  # 1 + 2·8 + 3·64 = 209
    [209, 0, 0]
    """
    require_bits(bits)
    if codes.is_floating_point() or codes.numel() == 0:
        raise ValueError(
            f"codes must be integers, at least one; got {tuple(codes.shape)} of {codes.dtype}"
        )
    if int(codes.min()) < 0 or int(codes.max()) >= 2**bits:
        raise ValueError(
            f"codes of {bits} bits are in 0 … {2**bits - 1}, got {int(codes.min())} … "
            f"{int(codes.max())}"
        )
    codes = torch.nn.functional.pad(codes.long(), (0, -codes.shape[-1] % 8))
    eights = codes.unflatten(-1, (-1, 8))  # (..., groups of eight, 8)
    shifts = bits * torch.arange(8, device=codes.device)
    words = (eights << shifts).sum(-1, keepdim=True)  # 8 · bits ≤ 64: no two codes overlap
    octets = words >> 8 * torch.arange(bits, device=codes.device) & 255
    return octets.flatten(-2).to(torch.uint8)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The first `count` codes of what `pack` made, uint8, (..., count).

    Raises ValueError if the bytes are not those of so many codes.

    >>> unpack(torch.tensor([209, 0, 0], dtype=torch.uint8), 3, 4).tolist()
    [1, 2, 3, 0]
    """
    require_bits(bits)
    if packed.shape[-1] != packed_size(count, bits):
        raise ValueError(
            f"{count} codes of {bits} bits take {packed_size(count, bits)} bytes, got "
            f"{packed.shape[-1]}"
        )
    if bits == 8:
        return packed[..., :count]
    octets = packed.unflatten(-1, (-1, bits)).long()  # (..., groups of eight, bits)
    words = (octets << 8 * torch.arange(bits, device=packed.device)).sum(-1, keepdim=True)
    codes = words >> bits * torch.arange(8, device=packed.device) & (2**bits - 1)
    return codes.flatten(-2)[..., :count].to(torch.uint8)


def packed_size(count: int, bits: int) -> int:
    """The bytes of one row of codes.

    >>> packed_size(576, 3)
    216
    """
    return -(-count // 8) * bits


def require_bits(bits: int, least: int = 1) -> int:
    """Return the bits if they are an integer from `least` to 8; otherwise raise ValueError."""
    if require_integer(bits, "bits", least) > 8:
        raise ValueError(f"bits must be from {least} to 8, got {bits}")
    return bits
