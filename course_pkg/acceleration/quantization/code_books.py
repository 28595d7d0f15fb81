"""Code books: the numbers in [-1, 1] that a code of 4 or 8 bits can stand for, as tensors.

The levels of the 4-bit codes come from `levels`; the 8-bit dynamic code, which stores the scales of
the weights, is defined here. `blockwise` quantizes with them.

Sources: Dettmers et al. 2023 (QLoRA), section 3 and appendix E; Dettmers et al. 2022, "8-bit
Optimizers via Block-wise Quantization", section 2 (the dynamic code).
Chapter: adapters/qlora.
"""

from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from course_pkg.acceleration.quantization.levels import LEVELS
from course_pkg.common.arguments import require_choice


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


@cache
def code_book(name: str) -> CodeBook:
    """The code book with this name. Raises ValueError for an unknown one."""
    levels = LEVELS[require_choice(name, "code_book", LEVELS)]()
    return CodeBook(name, torch.tensor(levels))


@cache
def byte_levels(name: str, device: torch.device) -> Tensor:
    """For each byte, the levels of its high and of its low code, (256, 2), fp32."""
    levels = torch.zeros(16)
    levels[: len(code_book(name).levels)] = code_book(name).levels
    return torch.cartesian_prod(levels, levels).to(device)
