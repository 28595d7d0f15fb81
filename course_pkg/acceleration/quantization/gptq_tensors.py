"""A linear layer in GPTQ's format: four tensors in place of the weight.

    qweight   int32, (in · bits / 32, out)       the codes, packed along the inputs
    qzeros    int32, (groups, out · bits / 32)   the zero points, packed along the outputs
    scales    fp16,  (groups, out)
    g_idx     int32, (in,)                       the group of each input

Packed numbers form one stream of bits, from the lowest bit of the first word on. 32 numbers of 3
bits take 3 words, and two of the numbers lie in two words each.

There are two conventions for zero points. "gptq", the older and usual one, stores the zero point
minus 1, modulo 2^bits; "gptq_v2" stores it as it is. A zero point of 0 becomes the largest code in
the older format, and not all programs turn that into 0 again, so it is not written. On a symmetric
grid every zero point is the middle, which shows the convention whatever the label says.

`gptq_files` reads and writes whole checkpoints.

Sources: the layers of AutoGPTQ 0.7.1 and GPTQModel 7.7.0.
Chapter: acceleration/quantized-weights.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from course_pkg.acceleration.quantization.grouped import SCALE_DTYPE, Grid, GroupedWeight, store
from course_pkg.acceleration.quantization.packing import pack, unpack
from course_pkg.common.arguments import require_choice

FORMATS = ("gptq", "gptq_v2")
BITS = (2, 3, 4, 8)
WORD = 32  # bits; inputs and outputs must be multiples of it, so that 3 bits fill whole words
PARTS = ("qweight", "qzeros", "scales", "g_idx")


def to_gptq(weight: GroupedWeight, checkpoint_format: str = "gptq") -> dict[str, Tensor]:
    """The four tensors of a layer, by PARTS.

    Raises ValueError for other bits than 2, 3, 4 and 8, rows or columns that are no multiples of
    32, an unknown format, or a zero point of 0 in the format "gptq".

    >>> from course_pkg.acceleration.quantization.grouped import round_to_nearest
    >>> tensors = to_gptq(round_to_nearest(torch.eye(32) - 0.5, Grid(4, 16)))
    >>> [(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
    [('qweight', (4, 32)), ('qzeros', (2, 4)), ('scales', (2, 32)), ('g_idx', (32,))]
    """
    require_choice(checkpoint_format, "checkpoint_format", FORMATS)
    grid = weight.grid
    _require_fitting(grid, *weight.shape)
    zero = weight.zero.long()
    if checkpoint_format == "gptq":
        if (zero == 0).any():
            raise ValueError(
                'the format "gptq" stores zero points minus 1, and one here is 0, because a group '
                'has no negative weight: use checkpoint_format="gptq_v2"'
            )
        zero = zero - 1
    columns = weight.columns
    groups = weight.order
    if groups is None:
        groups = torch.arange(columns, device=zero.device) // grid.width(columns)
    codes = unpack(weight.codes, grid.bits, columns)
    return {
        "qweight": _words(codes, grid.bits).T.contiguous(),
        "qzeros": _words(zero.T, grid.bits),
        "scales": weight.scale.T.contiguous(),
        "g_idx": groups.to(torch.int32),
    }


def from_gptq(
    tensors: Mapping[str, Tensor],
    grid: Grid,
    checkpoint_format: str = "gptq",
    dtype: torch.dtype = torch.float32,
) -> GroupedWeight:
    """The weight that a layer's four tensors stand for.

    grid: as the checkpoint's configuration describes it. dtype: of the weight that was quantized.
    Raises ValueError if the tensors do not fit together or the grid.
    """
    require_choice(checkpoint_format, "checkpoint_format", FORMATS)
    if missing := [name for name in PARTS if name not in tensors]:
        raise ValueError(f"a layer has {', '.join(PARTS)}; {', '.join(missing)} is missing")
    columns = tensors["g_idx"].numel()
    rows = tensors["scales"].shape[-1:].numel()
    _require_fitting(grid, rows, columns)
    width = grid.width(columns)
    bits = grid.bits
    expected = {
        "qweight": (columns * bits // WORD, rows),
        "qzeros": (columns // width, rows * bits // WORD),
        "scales": (columns // width, rows),
        "g_idx": (columns,),
    }
    for name, shape in expected.items():
        dtype_fits = name == "scales" or tensors[name].dtype == torch.int32
        if tensors[name].shape != shape or not dtype_fits:
            raise ValueError(
                f"{name} is {tuple(tensors[name].shape)} of {tensors[name].dtype}, but {rows} "
                f"outputs, {columns} inputs and {grid.describe()} need {shape} of int32, or of "
                "float16 for scales"
            )
    groups = tensors["g_idx"]
    if int(groups.min()) < 0 or int(groups.max()) >= columns // width:
        raise ValueError(f"g_idx must be in 0 … {columns // width - 1}, got {int(groups.max())}")
    codes = _numbers(tensors["qweight"].T, bits, columns)
    zero = _numbers(tensors["qzeros"], bits, rows).long()
    if _is_less_one(zero, grid, checkpoint_format):
        zero = (zero + 1) & grid.largest
    neighbors = torch.arange(columns, device=groups.device) // width
    order = None if torch.equal(groups.long(), neighbors) else groups
    scale = tensors["scales"].to(SCALE_DTYPE)
    return store(codes, scale.T, zero.T, grid, dtype, order)


def _is_less_one(stored: Tensor, grid: Grid, checkpoint_format: str) -> bool:
    """Whether the stored zero points are less by 1 than those meant.

    The middle of a symmetric grid is known, so the numbers tell; some programs label them wrongly.
    """
    middle = 2 ** (grid.bits - 1)
    if grid.symmetric and (stored == middle).all():
        return False
    if grid.symmetric and (stored == middle - 1).all():
        return True
    return checkpoint_format == "gptq"


def _words(numbers: Tensor, bits: int) -> Tensor:
    """Numbers packed along the last dimension into int32."""
    return pack(numbers, bits).contiguous().view(torch.int32)


def _numbers(words: Tensor, bits: int, count: int) -> Tensor:
    """The numbers in int32 words, uint8."""
    return unpack(words.contiguous().view(torch.uint8), bits, count)


def _require_fitting(grid: Grid, rows: int, columns: int) -> None:
    if grid.bits not in BITS:
        raise ValueError(f"GPTQ's format has 2, 3, 4 or 8 bits, not {grid.bits}")
    if rows % WORD or columns % WORD or not rows * columns:
        raise ValueError(
            f"GPTQ's format needs multiples of {WORD} outputs and inputs, got {rows} and {columns}"
        )
