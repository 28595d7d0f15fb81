"""`quantization`: the cases of its questions; right values: `acceleration.quantization`.

Numbers are drawn close to levels, so that no rounding decides between two codes.
"""

from random import Random
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from course_pkg.acceleration.quantization.blockwise import (
    QuantizedTensor,
    code_book,
    effective_bits,
)
from course_pkg.grading.assignments.quantization import student
from course_pkg.grading.questions.draws import normal_arrays

Inputs = dict[str, Any]
NF4 = [round(level, 4) for level in code_book("nf4").levels.tolist()]


def by_hand(rng: Random | None) -> Inputs:
    """Eight numbers, the largest magnitude negative; two block sizes; the sizes of a decoder."""
    if rng is None:
        numbers = [0.4, -0.12, -1.5, 0.93, 0.02, -0.74, 1.38, -0.31]
        case = {"numbers": numbers, "levels": NF4, "block": 64, "constants": 256}
        sizes = {"parameters": 6_738_415_616, "quantized": 6_476_005_376, "trained": 39_976_960}
        return {**case, **sizes}
    largest = rng.randint(150, 400) / 100  # at 1 it would make no difference
    levels = rng.sample(NF4[1:-1], 7)  # all different, so that the codes of a byte differ
    numbers = [round(largest * (level + rng.uniform(-0.02, 0.02)), 2) for level in levels]
    numbers.insert(rng.randrange(8), -largest)
    parameters = rng.randint(800, 14_000) * 1_000_000 + 1_024 * rng.randrange(400)
    return {
        "numbers": numbers,
        "levels": NF4,
        "block": 8 * rng.randint(2, 16),
        "constants": rng.choice([64, 128, 256]),
        "parameters": parameters,
        "quantized": parameters * rng.randint(920, 970) // 1000,
        "trained": parameters * rng.randint(40, 100) // 10_000,
    }


def by_hand_codes_expected(case: Inputs) -> list[int]:
    """The code of the nearest level for each number, divided by the largest magnitude."""
    numbers, levels = torch.tensor(case["numbers"]), torch.tensor(NF4)
    return quantize_expected({"x": numbers, "levels": levels, "block_size": 8})[0].tolist()


def by_hand_bytes_expected(case: Inputs, codes: list[int]) -> list[int]:
    """Two codes in each byte, the first in the high bits. Raises ValueError unless all fit."""
    if not all(0 <= code < 16 for code in codes):
        raise ValueError(f"the codes are {codes}; expected 0 to 15")
    return packed(torch.tensor(codes)).tolist()


def packed(codes: Tensor) -> Tensor:
    """Two 4-bit codes in each byte, the first in the high bits; an odd one is followed by 15."""
    if len(codes) % 2:
        codes = torch.cat([codes, codes.new_tensor([15])])
    return codes[::2] << 4 | codes[1::2]


def by_hand_bits_expected(case: Inputs) -> tuple[float, float]:
    """Bits per weight without and with double quantization."""
    return effective_bits(case["block"], None), effective_bits(case["block"], case["constants"])


def by_hand_memory_expected(case: Inputs, bits: tuple[float, float]) -> list[float]:
    """GB for full fine-tuning, LoRA and QLoRA, without activations."""
    total = case["parameters"]
    quantized = case["quantized"]
    adapters = 16 * case["trained"]
    qlora = quantized * bits[1] / 8 + 2 * (total - quantized) + adapters
    return [16 * total / 1e9, (2 * total + adapters) / 1e9, qlora / 1e9]


def levels_expected(inputs: Inputs) -> Inputs:
    """The levels from the quantiles that the standard library computes, as the student's side."""
    half = 2 ** (inputs["bits"] - 1)
    offset = inputs["offset"]

    def quantiles(count: int) -> list[float]:
        steps = [offset - (offset - 0.5) * i / count for i in range(count)]
        return [NormalDist().inv_cdf(p) for p in steps]

    levels = [-q for q in quantiles(half - 1)] + [0.0] + quantiles(half)[::-1]
    largest = NormalDist().inv_cdf(offset)
    return student.describe(torch.tensor(levels, dtype=torch.float64) / largest)


def draw_format(rng: Random, size: int, most: int = 0) -> Inputs:
    """3, 4 and 5 bits, or any number up to `most`, so that the number of levels isn't known."""
    bits = rng.randint(2, most) if most else 3 + size
    return {"bits": bits, "offset": round(rng.uniform(0.93, 0.99), 6)}


def quantize_expected(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The nearest level by comparing with all of them, block by block."""
    codes = []
    absmax = []
    for block in inputs["x"].double().reshape(-1).split(inputs["block_size"]):
        absmax.append(block.abs().max())
        scaled = block / (absmax[-1] or 1.0)
        codes.append((scaled[:, None] - inputs["levels"].double()).abs().argmin(1))
    return torch.cat(codes).to(torch.uint8), torch.stack(absmax).float()


def _code_book(rng: Random) -> list[float]:
    """Eight to sixteen levels from -1 to 1, with 0; no two gaps are alike."""
    halves = [sorted(rng.sample(range(8, 92), rng.randint(3, 7))) for _ in range(2)]
    levels = [-1.0, *(-n / 100 for n in reversed(halves[0])), 0.0, *(n / 100 for n in halves[1])]
    return [*levels, 1.0]


def _near(rng: Random, levels: list[float], count: int, scale: float) -> list[float]:
    """Numbers nearer to a level than to its neighbors, one of them scale or -scale, times scale."""
    numbers = []
    for _ in range(count - 1):
        i = rng.randrange(1, len(levels) - 1)
        neighbor = levels[i + rng.choice([-1, 1])]
        numbers.append(levels[i] + rng.uniform(0.1, 0.4) * (neighbor - levels[i]))
    numbers.insert(rng.randrange(count), -1.0)
    return [scale * number for number in numbers]


def _blocks(rng: Random, size: int, sizes: list[int], block: int, zero: int = -1) -> Inputs:
    """Blocks of these sizes, each with its own scale; that of index `zero` holds zeros."""
    levels = _code_book(rng)
    numbers = []
    for index, count in enumerate(sizes):
        scale = 0.0 if index == zero else rng.choice([0.25, 2.0, 8.0]) * (1 + index)
        numbers += _near(rng, levels, count, scale)
    return {"x": torch.tensor(numbers), "levels": torch.tensor(levels), "block_size": block}


def quantize_codes(rng: Random, size: int) -> Inputs:
    """One block whose largest magnitude is 1, so that the scale does not show."""
    inputs = _blocks(rng, size, [6 + 2 * size], 6 + 2 * size)
    return {**inputs, "x": inputs["x"] / inputs["x"].abs().max()}


def quantize_scales(rng: Random, size: int) -> Inputs:
    """Several whole blocks, in a matrix."""
    inputs = _blocks(rng, size, [4] * (2 + 2 * size), 4)
    return {**inputs, "x": inputs["x"].reshape(2, -1)}


def quantize_zeros(rng: Random, size: int) -> Inputs:
    """Nothing but zeros, in one block or several."""
    return _blocks(rng, size, [4] * (1 + size), 4, zero=0) | {"x": torch.zeros(4 + 4 * size)}


def quantize_ragged(rng: Random, size: int) -> Inputs:
    """A last block that is shorter than the others, or the only one."""
    sizes = [4] * size + [1 + rng.randrange(3)]
    return _blocks(rng, size, sizes, 4)


def dequantize_expected(inputs: Inputs) -> Tensor:
    """level · absmax, as the course's quantized tensor computes it."""
    packed, absmax, block_size = inputs["packed"], inputs["absmax"], inputs["block_size"]
    book = code_book("nf4")
    stored = QuantizedTensor(
        packed, absmax, torch.Size(inputs["shape"]), torch.float32, block_size, book
    )
    return stored.dequantize()


def _packed(rng: Random, shape: list[int], block: int, *, scaled: bool = True) -> Inputs:
    """Random codes for a vector or a matrix; `scaled` draws a scale for each block, else 1."""
    count = shape[0] * (shape[1] if len(shape) == 2 else 1)
    codes = torch.tensor([rng.randrange(16) for _ in range(count)], dtype=torch.uint8)
    blocks = -(-count // block)
    absmax = [rng.choice([0.5, 2.0, 3.0, 5.0]) if scaled else 1.0 for _ in range(blocks)]
    return {
        "packed": packed(codes),
        "absmax": torch.tensor(absmax),
        "levels": code_book("nf4").levels,
        "block_size": block,
        "shape": shape,
    }


def dequantize_unpack(rng: Random, size: int) -> Inputs:
    """A vector with scales of 1."""
    return _packed(rng, [4 + 4 * size], 4, scaled=False)


def dequantize_scales(rng: Random, size: int) -> Inputs:
    """A vector of several whole blocks."""
    return _packed(rng, [8 + 4 * size], 4)


def dequantize_ragged(rng: Random, size: int) -> Inputs:
    """An odd count, so that half a byte is left over; scales of 1."""
    return _packed(rng, [5 + 2 * size], 4, scaled=False)


def dequantize_shape(rng: Random, size: int) -> Inputs:
    """A matrix with scales of 1."""
    return _packed(rng, [2, 4 + 2 * size], 4, scaled=False)


def linear_expected(inputs: Inputs) -> Inputs:
    """What the script observes on a layer that keeps the rule of the task."""
    return student.linear(Recomputed, inputs)


class Recomputed(torch.nn.Module):
    """W x + b with the dequantized W, which is computed again in the backward pass."""

    def __init__(self, linear: torch.nn.Linear, quantize: Any, compute_dtype: torch.dtype) -> None:
        super().__init__()
        self.stored = quantize(linear.weight)
        self.bias = linear.bias
        self.dtype = compute_dtype

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out) in x's dtype."""
        return torch.utils.checkpoint.checkpoint(self._product, x, use_reentrant=False)

    def _product(self, x: Tensor) -> Tensor:
        result = x.to(self.dtype) @ self.stored.dequantize(self.dtype).T
        return (result if self.bias is None else result + self.bias.to(self.dtype)).to(x.dtype)


def draw_layer(
    rng: Random,
    size: int,
    *,
    bias: bool = False,
    dtype: str = "float32",
    backward: bool = False,
    later: bool = False,
    trained: bool = False,
) -> Inputs:
    """A layer, and what `student.linear` does with it."""
    d = 3 + size
    arrays = normal_arrays(rng, x=(2 + size, 4), weight=(d, 4), bias=d, _later=(d, 4))
    if not bias:
        arrays["bias"] = None
    if not later:
        arrays["_later"] = None
    return arrays | {"compute_dtype": dtype, "_backward": backward, "_trained": trained}
