"""Dropout from a counter-based generator: the bits of an element depend on its indices alone.

So the tiled backward pass can repeat the mask of the forward pass tile by tile, in another order,
without storing it.
"""

import torch
from torch import Tensor

from course_pkg.common.arguments import require_between

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_WORD = 0xFFFFFFFF
_ROUNDS = 10


Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Philox4x32-10: four random 32-bit words for each four-word counter.

    Words are int64 tensors with values in [0, 2³²) that broadcast, since torch has no complete
    32-bit unsigned arithmetic; a product that overflows keeps the right 64 bits.

    Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011), section 3.
    """
    a, b, c, d = counter
    key_a, key_b = key
    for _ in range(_ROUNDS):
        high_a, low_a = _multiply(a, _MULTIPLIERS[0])
        high_c, low_c = _multiply(c, _MULTIPLIERS[1])
        a = high_c ^ b ^ key_a
        c = high_a ^ d ^ key_b
        b = low_c
        d = low_a
        key_a = (key_a + _KEY_STEPS[0]) & _WORD
        key_b = (key_b + _KEY_STEPS[1]) & _WORD
    return a, b, c, d


def keep_mask(
    seed: int, head_index: Tensor, query_index: Tensor, key_index: Tensor, p: float
) -> Tensor:
    """True for the probabilities that dropout keeps; each is dropped with probability `p`.

    Args:
        seed: in [0, 2⁶⁴).
        head_index: batch index · heads + head.
        query_index, key_index: counted in the whole sequence; the three broadcast.
    """
    require_between(p, "p", 0, 1, closed=True)
    require_between(seed, "seed", 0, 2**64, closed=True)
    counter = [index.long() for index in (key_index, query_index, head_index)]
    zero = torch.zeros((), dtype=torch.int64, device=counter[0].device)
    word, *_ = philox4x32((*counter, zero), (seed & _WORD, seed >> 32))
    return word >= round(p * 2**32)


def _multiply(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """The high and the low 32 bits of a product of two 32-bit words."""
    product = word * multiplier  # may become negative; its bits are right
    return (product >> 32) & _WORD, product & _WORD
