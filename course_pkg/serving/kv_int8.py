"""Keys and values in 8 bits: one scale per token and head, from its largest absolute value.

A token's scale depends on no other token, so that nothing kept changes when tokens come, and every
storage of `course_pkg.serving.kv_storage` can hold the codes. Chapter: serving/kv-cache.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from course_pkg.serving.kv_storage import Kept, Storage


class Int8:
    """Any storage in 8 bits: one for the codes, and one for the scales, in fp32.

    New tokens, too, are attended to as they will be read later, so that it makes no difference
    whether they come one by one or together. Reading restores the whole layer for a moment; a
    kernel for serving would do it block by block.
    """

    def __init__(self, new_storage: Callable[[], Storage]) -> None:
        self.codes, self.scales = new_storage(), new_storage()

    @property
    def length(self) -> int:
        """The number of tokens."""
        return self.codes.length

    def append(self, key: Tensor, value: Tensor) -> Kept:
        """Quantize the new tokens, keep them, and restore all."""
        key_codes, key_scales = quantize(key)
        value_codes, value_scales = quantize(value)
        codes = self.codes.append(key_codes, value_codes)
        scales = self.scales.append(key_scales, value_scales)
        return Kept(
            dequantize(codes.key, scales.key).to(key.dtype),
            dequantize(codes.value, scales.value).to(value.dtype),
            codes.index,
        )

    def can_truncate(self, tokens: int) -> bool:
        """Whether the inner storage can."""
        return self.codes.can_truncate(tokens)

    def truncate(self, tokens: int) -> None:
        """Truncate codes and scales."""
        self.codes.truncate(tokens)
        self.scales.truncate(tokens)

    @property
    def bytes(self) -> int:
        """The memory of the codes and the scales: head_dim + 4 bytes per token and head."""
        return self.codes.bytes + self.scales.bytes


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes from −127 to 127, int8, x's shape, and one scale per token and head, fp32, (…, 1).

    The scale is the largest absolute value / 127, so the error is at most half a scale. All zeros
    have scale 0.

    >>> codes, scales = quantize(torch.tensor([[127.0, -63.6, 0.4]]))
    >>> codes, dequantize(codes, scales)
    (tensor([[127, -64,   0]], dtype=torch.int8), tensor([[127., -64.,   0.]]))
    """
    scales = x.float().abs().amax(-1, keepdim=True) / 127  # (…, 1)
    codes = (x.float() / scales.clamp(min=torch.finfo(torch.float32).tiny)).round()
    return codes.to(torch.int8), scales


def dequantize(codes: Tensor, scales: Tensor) -> Tensor:
    """The values that the codes stand for, fp32."""
    return codes * scales
