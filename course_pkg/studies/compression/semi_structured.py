"""n:m weights in storage: the kept values of each group, and where in the group they are.

On a CPU it saves memory, not time: the product dequantizes first. Sources: Mishra et al. 2021,
section 3; Zhou et al. 2021.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from course_pkg.acceleration.quantization.grouped import pack, unpack
from course_pkg.acceleration.quantization.quantized_linear import QuantizedWeight, dense_product
from course_pkg.common.arguments import require_integer
from course_pkg.studies.compression.pruning import SemiStructured, keep_largest


def index_bits(m: int) -> int:
    """The bits of an index in a group of m: ⌈log₂ m⌉."""
    return (require_integer(m, "m", least=2) - 1).bit_length()


def stored_bits(pattern: SemiStructured, value_bits: int) -> float:
    """The bits per weight of the dense matrix: n (value_bits + index bits) / m, without padding.

    >>> [stored_bits(SemiStructured(2, 4), bits) / bits for bits in (16, 8, 4)]
    [0.5625, 0.625, 0.75]
    """
    require_integer(value_bits, "value_bits")
    return pattern.n * (value_bits + index_bits(pattern.m)) / pattern.m


def compress(weight: Tensor, pattern: SemiStructured) -> tuple[Tensor, Tensor]:
    """The kept values and their indices in their groups, (rows, columns · n / m) each.

    Args:
        weight: (rows, columns), with at most n nonzero numbers in each group of m.
    """
    if weight.dim() != 2:
        raise ValueError(f"expected a matrix, (rows, columns), got {tuple(weight.shape)}")
    pattern.check(weight.shape[1])
    groups = weight.unflatten(1, (-1, pattern.m))  # (rows, groups, m)
    nonzero = groups != 0
    if (most := int(nonzero.sum(-1).max())) > pattern.n:
        raise ValueError(
            f"a group of {pattern.m} has {most} nonzero weights, but {pattern.n}:{pattern.m} "
            f"stores {pattern.n}: prune with SemiStructured({pattern.n}, {pattern.m}) first"
        )
    stays = keep_largest(nonzero.to(torch.uint8), pattern.n)
    indices = stays.nonzero()[:, 2].view(*groups.shape[:2], pattern.n)  # ascending in a group
    values = groups.gather(2, indices)
    return values.flatten(1), indices.to(torch.uint8).flatten(1)


def decompress(values: Tensor, indices: Tensor, pattern: SemiStructured) -> Tensor:
    """The dense matrix, (rows, columns), from what `compress` returned."""
    groups = values.unflatten(1, (-1, pattern.n))  # (rows, groups, n)
    places = indices.long().unflatten(1, (-1, pattern.n))
    dense = values.new_zeros(*groups.shape[:2], pattern.m)
    return dense.scatter_(2, places, groups).flatten(1)


@dataclass(frozen=True, eq=False)
class SemiStructuredWeight(QuantizedWeight):
    """An n:m matrix in storage, a weight for `QuantizedLinear`.

    Attributes:
        codes: the indices, packed, uint8, (rows, bytes).
        values: (rows, columns · n / m).
        columns, dtype: those of the original.
    """

    codes: Tensor
    values: Tensor
    columns: int
    dtype: torch.dtype
    pattern: SemiStructured

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.codes), self.columns))

    @property
    def indices(self) -> Tensor:
        """The index of each value in its group, uint8, (rows, columns · n / m)."""
        return unpack(self.codes, index_bits(self.pattern.m), self.values.shape[1])

    def describe(self) -> str:
        return f"{self.pattern.n}:{self.pattern.m} of {self.values.dtype}"

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        return decompress(self.values, self.indices, self.pattern).to(dtype or self.dtype)

    def matmul(self, x: Tensor) -> Tensor:
        return dense_product(x, self)


def semi_structured_weight(weight: Tensor, pattern: SemiStructured) -> SemiStructuredWeight:
    """A pruned matrix in storage, which is exact."""
    values, indices = compress(weight.detach(), pattern)
    codes = pack(indices, index_bits(pattern.m))
    return SemiStructuredWeight(codes, values, weight.shape[1], weight.dtype, pattern)
