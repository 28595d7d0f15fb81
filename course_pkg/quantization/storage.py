"""What blockwise 4-bit storage costs: bits per parameter, and bytes of a tensor.

Chapter: adapters/qlora.
"""

import math

BLOCK_SIZE, CONSTANT_BLOCK_SIZE = 64, 256  # QLoRA's, for weights and for their scales


def effective_bits(block_size: int, constant_block_size: int | None) -> float:
    """Bits per parameter that 4-bit storage costs, scales included.

    Without double quantization, 4 + 32/block_size; with it, 4 + 8/block_size +
    32/(block_size · constant_block_size). block_size: weights that share one scale;
    constant_block_size: 8-bit scales that share one in fp32, or None without double quantization.
    Raises ValueError below 1. Source: QLoRA (Dettmers et al. 2023), section 3.

    >>> round(effective_bits(64, 256), 3), effective_bits(64, None)
    (4.127, 4.5)
    """
    if block_size < 1 or (constant_block_size is not None and constant_block_size < 1):
        raise ValueError(f"block sizes must be >= 1, got {block_size} and {constant_block_size}")
    if constant_block_size is None:
        return 4 + 32 / block_size
    return 4 + 8 / block_size + 32 / (block_size * constant_block_size)


def stored_bytes(size: int, block_size: int, constant_block_size: int | None) -> int:
    """Bytes of a tensor of `size` numbers in 4 bits; partial blocks count as whole ones.

    Codes, and the scales: fp32, or 8-bit with an fp32 scale for each block of them and one fp32
    offset. The arguments are those of `effective_bits`.

    >>> stored_bytes(64 * 256, 64, 256)  # 8192 for the codes, 256 + 4 + 4 for the scales
    8456
    >>> stored_bytes(65, 64, None)
    41
    """
    scales = math.ceil(size / block_size)
    if constant_block_size is None:
        return math.ceil(size / 2) + 4 * scales
    return math.ceil(size / 2) + scales + 4 * math.ceil(scales / constant_block_size) + 4
