"""Code books: the numbers in [-1, 1] that a code of 4 or 8 bits can stand for.

NF4 places its levels at quantiles of the normal distribution, because trained weights are close to
normal. FP4 is a floating-point format with 1 sign, 2 exponent and 1 mantissa bit. INT4 has equal
steps. The 8-bit dynamic code stores the scales of the weights.
This module has the levels only; `blockwise` quantizes with them.

Sources: Dettmers et al. 2023 (QLoRA), section 3 and appendix E; Dettmers et al. 2022, "8-bit
Optimizers via Block-wise Quantization", section 2 (the dynamic code).
Chapter: adapters/qlora.
"""

from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from course_pkg.arguments import require_choice

OFFSET = 0.9677083  # the quantile that becomes the level 1: about 1 - (1/32 + 1/30) / 2


@dataclass(frozen=True, eq=False)
class CodeBook:
    """The levels of a 4-bit code: code number i stands for levels[i].

    name: "nf4", "fp4" or "int4". levels: at most 16 numbers in [-1, 1], fp32, in the order of
    their codes.
    """

    name: str
    levels: Tensor

    @cached_property
    def ascending_codes(self) -> Tensor:
        """The codes from the smallest level to the largest."""
        return self.levels.argsort(stable=True)

    @cached_property
    def bounds(self) -> Tensor:
        """The midpoints of neighboring levels; a number on a midpoint takes the lower level."""
        ascending = self.levels[self.ascending_codes]
        return (ascending[:-1] + ascending[1:]) / 2


def nf4_levels() -> Tensor:
    """NormalFloat4: 16 levels at quantiles of the standard normal, divided by the largest.

    The positive half has 8 levels and the negative half 7, so that 0 is a level too. The
    probabilities are 9 (and 8) equally spaced numbers from OFFSET to 1/2, in fp32 as in the
    original, so that the levels equal the published ones bit for bit.
    Source: Dettmers et al. 2023, section 3 and appendix E.

    >>> [round(level, 4) for level in nf4_levels().tolist()[:4]]
    [-1.0, -0.6962, -0.5251, -0.3949]
    """
    positive = torch.special.ndtri(torch.linspace(OFFSET, 0.5, 9)[:-1].double())
    negative = -torch.special.ndtri(torch.linspace(OFFSET, 0.5, 8)[:-1].double())
    levels = torch.cat([negative, torch.zeros(1), positive.flip(0)]).float()
    return levels / levels.max()


def fp4_levels() -> Tensor:
    """FP4 as bitsandbytes defines it, a number with a sign, 2 exponent bits e and 1 mantissa bit m.

    For e > 0 a code stands for 2^(4 - e) · (1 + m/2) / 12, so a larger e is a smaller number; for
    e = 0 it stands for 0 or 1/192. The level 1/192 is far below its neighbor 1/6: the E2M1 format
    of the Open Compute Project has the same levels, but 1/12 in its place.

    >>> [round(level, 4) for level in fp4_levels().tolist()[:8]]
    [0.0, 0.0052, 0.6667, 1.0, 0.3333, 0.5, 0.1667, 0.25]
    """
    normal = [2.0 ** (4 - e) * (1 + m / 2) for e in (1, 2, 3) for m in (0, 1)]
    levels = torch.tensor([0.0, 1 / 16, *normal])
    return torch.cat([levels, 0 - levels]) / 12


def int4_levels() -> Tensor:
    """Symmetric INT4: the 15 integers from -7 to 7, divided by 7. Code i stands for (i - 7) / 7."""
    return torch.arange(-7, 8) / 7


@cache
def dynamic_levels(device: torch.device | str = "cpu") -> Tensor:
    """The 8-bit dynamic code: 256 ascending levels, dense near 0.

    For each power 10^0 to 10^-6, a number of linear steps between 0.1 and 1 that halves from
    64 to 1, on both sides of zero; and 0 and 1. Its smallest level is -0.993.
    Source: Dettmers et al. 2022, section 2.

    >>> round(dynamic_levels()[0].item(), 3)
    -0.993
    """
    levels = [torch.tensor([0.0, 1.0])]
    for power in range(7):
        edges = torch.linspace(0.1, 1, 2**power + 1)
        steps = 10 ** (power - 6) * ((edges[:-1] + edges[1:]) / 2)
        levels += [steps, -steps]
    return torch.cat(levels).sort().values.to(device)


LEVELS = {"nf4": nf4_levels, "fp4": fp4_levels, "int4": int4_levels}


@cache
def code_book(name: str) -> CodeBook:
    """The code book with this name. Raises ValueError for an unknown one."""
    return CodeBook(name, LEVELS[require_choice(name, "code_book", LEVELS)]())


@cache
def byte_levels(name: str, device: torch.device) -> Tensor:
    """For each byte, the levels of its high and of its low code, (256, 2), fp32."""
    levels = torch.zeros(16)
    levels[: len(code_book(name).levels)] = code_book(name).levels
    return torch.cartesian_prod(levels, levels).to(device)
