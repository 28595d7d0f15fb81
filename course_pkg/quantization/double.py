"""Double quantization: the fp32 scales of the blocks in 8 bits each.

The scales are positive, so their mean is subtracted first; the 8-bit dynamic code then stores the
differences in blocks of 256, each with its own fp32 scale.

Source: Dettmers et al. 2023 (QLoRA), section 3, "Double Quantization".
Chapter: adapters/qlora.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from course_pkg.quantization.code_books import dynamic_levels
from course_pkg.quantization.storage import CONSTANT_BLOCK_SIZE

GRID = 2**16  # a number in [-1, 1] is rounded to this many points before its level is looked up


@dataclass(frozen=True, eq=False)
class DoubleQuantized:
    """Scales in 8 bits: codes, uint8; one absmax per block of 256, fp32; the mean, fp32."""

    codes: Tensor
    absmax: Tensor
    offset: Tensor

    def dequantize(self) -> Tensor:
        """The scales in fp32: level · absmax + offset."""
        levels = dynamic_levels_on(self.codes.device).index_select(0, self.codes.int())
        scales = self.absmax.repeat_interleave(CONSTANT_BLOCK_SIZE)[: len(levels)]
        return levels * scales + self.offset

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, the absmax and the offset."""
        return self.codes.nbytes + self.absmax.nbytes + self.offset.nbytes


def quantize_scales(scales: Tensor) -> DoubleQuantized:
    """Quantize the fp32 scales of a tensor's blocks, (blocks,), to 8 bits.

    Like bitsandbytes on a CPU, it rounds to a grid of 2^16 points first and looks up the nearest
    level of the grid point. Its GPU kernel searches for the nearest level itself, so the two may
    differ in a code near 0. If a scale is NaN or infinite, all of them become NaN.
    Source: Dettmers et al. 2023, section 3.

    >>> scales = torch.tensor([1.0, 2.0, 6.0])
    >>> double = quantize_scales(scales)
    >>> double.offset.item(), double.absmax.tolist(), double.dequantize().tolist()[2]
    (3.0, [3.0], 6.0)
    """
    offset = scales.mean()
    centered = scales - offset
    count = len(scales)
    padding = -count % CONSTANT_BLOCK_SIZE
    blocks = torch.nn.functional.pad(centered, (0, padding)).view(-1, CONSTANT_BLOCK_SIZE)
    absmax = blocks.abs().nan_to_num(0.0, torch.inf).amax(1)
    normalized = (blocks * absmax.reciprocal()[:, None]).clamp(-1, 1).nan_to_num(-1.0)
    points = ((normalized + 1) * 0.5 * (GRID - 1) + 0.5).int()  # rounded to the nearest point
    codes = _code_of_point().to(scales.device).index_select(0, points.view(-1)).view(blocks.shape)
    codes = torch.where(absmax[:, None] == 0, 0, codes).view(-1)[:count]
    return DoubleQuantized(codes, absmax, offset)


@cache
def dynamic_levels_on(device: torch.device) -> Tensor:
    """The dynamic code's levels on a device."""
    return dynamic_levels().to(device)


@cache
def _code_of_point() -> Tensor:
    """The code of the level nearest to each grid point, uint8, (GRID,)."""
    levels = dynamic_levels()
    points = 2.0 * torch.arange(GRID) / (GRID - 1) - 1
    return torch.bucketize(points, (levels[:-1] + levels[1:]) / 2).to(torch.uint8)
