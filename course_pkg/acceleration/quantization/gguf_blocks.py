"""The blocks in which llama.cpp's GGUF files store quantized weights.

A row is cut into blocks, and a block has its scale next to its codes. Blocks of 32 weights::

    Q4_0, Q5_0    w = d · (code − half)     d = signed extreme / −half; half = 8 or 16
    Q4_1, Q5_1    w = d · code + m          d = (max − min) / largest code; m = min
    Q8_0          w = d · code              d = max|w| / 127

d and m are stored in fp16; codes are computed with d in fp32. Low halves of bytes have the first 16
weights, high halves the others. A K-block has 256 weights in 8 sub-blocks of 32 (Q6_K: 16 of 16)::

    Q4_K, Q5_K    w = (d · scale) · code − (d_min · minimum)
    Q6_K          w = (d · scale) · (code − 32)

Choosing these scales well is a search of its own, so K-blocks are only read. Bytes and numbers
equal those of the gguf package. Source: ggml-common.h and ggml-quants.c of llama.cpp, and gguf
0.19.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from course_pkg.acceleration.quantization import cpu_kernels
from course_pkg.acceleration.quantization.grouped import require_matrix
from course_pkg.acceleration.quantization.quantized_linear import QuantizedWeight, dense_product
from course_pkg.common.arguments import require_choice


def read_q4_k(blocks: Tensor) -> Tensor:
    """Weights, fp32, (n, 256), of blocks, (n, 144): d, d_min, 12 bytes of scales, 128 of codes."""
    d, d_min, packed, codes = _split(blocks, 2, 2, 12, 128)
    scales, minima = _six_bits(packed)
    return _affine(d, scales, d_min, minima, _nibbles(codes, 32))


def read_q5_k(blocks: Tensor) -> Tensor:
    """As `read_q4_k`, (n, 176), with 32 bytes of fifth bits.

    Bit i of byte j belongs to weight j of sub-block i.
    """
    d, d_min, packed, fifth, codes = _split(blocks, 2, 2, 12, 32, 128)
    scales, minima = _six_bits(packed)
    high = (fifth[:, None] >> torch.arange(8, device=blocks.device)[:, None]) & 1  # (n, 8, 32)
    return _affine(d, scales, d_min, minima, _nibbles(codes, 32) | high << 4)


def read_q6_k(blocks: Tensor) -> Tensor:
    """Weights of Q6_K blocks, (n, 210): low 4 bits, high 2 bits, 16 int8 scales, d."""
    low, high, scales, d = _split(blocks, 128, 64, 16, 2)
    shifts = torch.arange(0, 8, 2, device=blocks.device)[:, None]
    high = (high.view(-1, 2, 1, 32) >> shifts) & 3  # (n, 2, 4, 32)
    codes = _nibbles(low, 64).view(-1, 16, 16) | (high << 4).view(-1, 16, 16)
    scales = half(d) * scales.view(torch.int8).float()  # (n, 16)
    return (scales[..., None] * (codes.float() - 32)).flatten(1)


def half(pair: Tensor) -> Tensor:
    """The fp16 numbers of pairs of bytes, (n, 2), as fp32, (n, 1)."""
    return pair.contiguous().view(torch.float16).float()


def _affine(d: Tensor, scales: Tensor, d_min: Tensor, minima: Tensor, codes: Tensor) -> Tensor:
    """scales and minima: (n, 8). codes: (n, 8, 32)."""
    steps = half(d) * scales.float()
    offsets = half(d_min) * minima.float()
    return (steps[..., None] * codes.float() - offsets[..., None]).flatten(1)


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The 8 scales and 8 minima of 6 bits, (n, 8) each, in 12 bytes.

    Bytes 0–3 and 4–7 have the first four scales and minima in their low 6 bits. Bytes 8–11 have the
    low 4 bits of the last four, scales in the low half. Their high 2 bits are on top of bytes 0–7.
    """
    first, second, rest = _split(packed, 4, 4, 4)
    scales = torch.cat([first & 63, rest & 15 | first >> 6 << 4], 1)
    minima = torch.cat([second & 63, rest >> 4 | second >> 6 << 4], 1)
    return scales, minima


def _nibbles(codes: Tensor, run: int) -> Tensor:
    """4-bit codes, (n, 8, 32): the low halves of a run of bytes, then the high halves."""
    runs = codes.reshape(len(codes), -1, run)
    return torch.stack([runs & 15, runs >> 4], 2).view(len(codes), 8, 32)


def _split(blocks: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    return tuple(part.contiguous() for part in blocks.split(sizes, dim=1))


LARGEST_HALF = 65504.0


@dataclass(frozen=True)
class BlockFormat:
    """A format of blocks: `size` weights in `nbytes` bytes."""

    name: str
    size: int
    nbytes: int
    read: Callable[[Tensor], Tensor]  # (n, nbytes) to fp32, (n, size)
    write: Callable[[Tensor], Tensor] | None = None
    fallback: str | None = None  # where blocks don't divide a row; None: fp16

    @property
    def bits(self) -> float:
        """Bits per weight, scales included."""
        return 8 * self.nbytes / self.size


@dataclass(frozen=True, eq=False)
class GGUFWeight(QuantizedWeight):
    """A weight in the bytes of a GGUF file."""

    codes: Tensor  # uint8, (rows, bytes of a row): blocks with their scales
    dtype: torch.dtype  # of the numbers read
    format: BlockFormat

    @property
    def shape(self) -> torch.Size:
        rows, row_bytes = self.codes.shape
        return torch.Size((rows, row_bytes // self.format.nbytes * self.format.size))

    def describe(self) -> str:
        return f"GGUF {self.format.name}"

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        blocks = self.codes.reshape(-1, self.format.nbytes)
        return self.format.read(blocks).view(self.shape).to(dtype or self.dtype)

    def matmul(self, x: Tensor) -> Tensor:
        """x Ŵᵀ, (..., rows); a few tokens in bf16 go through torch's kernel for Q4_0 and Q4_1."""
        if cpu_kernels.takes(x, 4) and self._few_tokens_weight is not None:
            return self._few_tokens_weight.product(x)
        return dense_product(x, self)

    @cached_property
    def _few_tokens_weight(self) -> cpu_kernels.Int4Weight | None:
        if self.format.name not in ("Q4_0", "Q4_1") or not cpu_kernels.fits(self.shape):
            return None
        blocks = self.codes.reshape(-1, self.format.nbytes)
        codes, _ = _codes(blocks[:, -16:])
        scale = half(blocks[:, :2])
        offset = -8 * scale if self.format.name == "Q4_0" else half(blocks[:, 2:4])
        groups = (self.shape[0], -1)
        return cpu_kernels.Int4Weight(
            codes.view(self.shape), scale.view(groups), offset.view(groups)
        )


def read_gguf(data: object, name: str) -> GGUFWeight:
    """The weight in the bytes of a tensor of a GGUF file.

    Args:
        data: uint8, (rows, bytes of a row): a torch tensor or a NumPy array such as the `data` of
            gguf.GGUFReader's tensors.
        name: "Q4_0" or another of FORMATS.
    """
    layout = FORMATS[require_choice(name, "name", FORMATS)]
    codes = data.detach() if isinstance(data, Tensor) else torch.tensor(data)
    if codes.dtype != torch.uint8 or codes.dim() != 2:
        raise TypeError(
            f"expected bytes, uint8 of shape (rows, bytes), got {codes.dtype}, {tuple(codes.shape)}"
        )
    if codes.shape[1] == 0 or codes.shape[1] % layout.nbytes:
        raise ValueError(
            f"a row of {codes.shape[1]} bytes is not whole blocks of {name}, {layout.nbytes} bytes "
            "each; is it another format?"
        )
    return GGUFWeight(codes.contiguous(), torch.float32, layout)


def write_gguf(weight: Tensor, name: str) -> GGUFWeight:
    """Quantize a weight, (rows, columns), as llama.cpp does; K-blocks can't be written.

    Example:

        >>> written = write_gguf(torch.linspace(-1, 1, 32)[None], "Q4_0")
        >>> written.effective_bits, written.dequantize()[0, [0, 31]].tolist()  # of ±1, one is exact
        (4.5, [-1.0, 0.875])
    """
    layout = FORMATS[require_choice(name, "name", FORMATS)]
    columns = require_matrix(weight).shape[1]
    require_columns(name, columns)
    if layout.write is None:
        writable = ", ".join(layout.name for layout in FORMATS.values() if layout.write)
        raise ValueError(f"{name} can be read only; these can be written: {writable}")
    blocks = weight.detach().float().reshape(-1, layout.size)
    codes = layout.write(blocks).view(len(weight), -1)
    return GGUFWeight(codes, weight.dtype, layout)


def require_columns(name: str, columns: int) -> int:
    """Return the columns if blocks of this format divide them, or say what llama.cpp uses."""
    layout = FORMATS[require_choice(name, "name", FORMATS)]
    if columns % layout.size:
        raise ValueError(
            f"blocks of {name}, {layout.size} weights, do not divide {columns} columns; llama.cpp "
            f"uses {fitting(name, columns)} here"
        )
    return columns


def fitting(name: str, columns: int) -> str:
    """The format in which llama.cpp stores rows of so many columns if asked for `name`."""
    while columns % FORMATS[name].size:
        if FORMATS[name].fallback is None:
            return "F16"
        name = FORMATS[name].fallback
    return name


def _read_symmetric(blocks: Tensor) -> Tensor:
    """Q4_0 and Q5_0: d; the fifth bits, if there are any; 16 bytes of codes."""
    codes, bits = _codes(blocks[:, 2:])
    return half(blocks[:, :2]) * (codes - 2 ** (bits - 1)).float()


def _read_affine(blocks: Tensor) -> Tensor:
    """Q4_1 and Q5_1: d; m; the fifth bits, if there are any; 16 bytes of codes."""
    codes, _ = _codes(blocks[:, 4:])
    return half(blocks[:, :2]) * codes.float() + half(blocks[:, 2:4])


def _read_q8_0(blocks: Tensor) -> Tensor:
    """d; 32 bytes of codes."""
    return half(blocks[:, :2]) * blocks[:, 2:].contiguous().view(torch.int8).float()


def _write_symmetric(bits: int, weights: Tensor) -> Tensor:
    middle = 2 ** (bits - 1)
    extreme = weights.gather(1, weights.abs().argmax(1, keepdim=True))  # the first, if several
    d = extreme / -middle
    codes = (weights * _reciprocal(d) + (middle + 0.5)).trunc().clamp(0, 2 * middle - 1)
    return torch.cat([_half_bytes(d), _code_bytes(codes, bits)], 1)


def _write_affine(bits: int, weights: Tensor) -> Tensor:
    largest = 2**bits - 1
    low = weights.amin(1, keepdim=True)
    d = (weights.amax(1, keepdim=True) - low) / largest
    codes = ((weights - low) * _reciprocal(d) + 0.5).trunc().clamp(0, largest)
    return torch.cat([_half_bytes(d), _half_bytes(low), _code_bytes(codes, bits)], 1)


def _write_q8_0(weights: Tensor) -> Tensor:
    d = weights.abs().amax(1, keepdim=True) / 127
    scaled = weights * _reciprocal(d)
    whole = scaled.trunc()
    codes = whole + (2 * (scaled - whole)).trunc()  # ties away from zero, as C's roundf
    return torch.cat([_half_bytes(d), codes.to(torch.int8).view(torch.uint8)], 1)


def _codes(packed: Tensor) -> tuple[Tensor, int]:
    """Codes, int16, (n, 32), of 16 bytes, perhaps after 4 bytes of fifth bits; and their bits."""
    nibbles = packed[:, -16:]
    codes = torch.cat([nibbles & 15, nibbles >> 4], 1).to(torch.int16)
    if packed.shape[1] == 16:
        return codes, 4
    fifth = (packed[:, :4, None] >> torch.arange(8, device=packed.device)) & 1  # (n, 4, 8)
    return codes | fifth.flatten(1).to(torch.int16) << 4, 5


def _code_bytes(codes: Tensor, bits: int) -> Tensor:
    """The reverse of `_codes`."""
    codes = codes.to(torch.uint8)
    low = codes & 15
    nibbles = low[:, :16] | low[:, 16:] << 4
    if bits == 4:
        return nibbles
    fifth = (codes >> 4).view(-1, 4, 8) << torch.arange(8, device=codes.device)
    return torch.cat([fifth.sum(2).to(torch.uint8), nibbles], 1)


def _half_bytes(number: Tensor) -> Tensor:
    """fp32, (n, 1), as the bytes of fp16, (n, 2)."""
    if number.abs().max() > LARGEST_HALF:
        raise ValueError(
            f"a block needs the number {number.abs().max():g}, but fp16 has up to 65,504; are "
            "these weights?"
        )
    return number.to(torch.float16).view(torch.uint8)


def _reciprocal(d: Tensor) -> Tensor:
    """1 / d, and 0 where there is none."""
    inverse = d.reciprocal()
    return torch.where(inverse.isinf(), 0.0, inverse)


FORMATS = {
    layout.name: layout
    for layout in (
        BlockFormat("Q4_0", 32, 18, _read_symmetric, partial(_write_symmetric, 4)),
        BlockFormat("Q4_1", 32, 20, _read_affine, partial(_write_affine, 4)),
        BlockFormat("Q5_0", 32, 22, _read_symmetric, partial(_write_symmetric, 5)),
        BlockFormat("Q5_1", 32, 24, _read_affine, partial(_write_affine, 5)),
        BlockFormat("Q8_0", 32, 34, _read_q8_0, _write_q8_0),
        BlockFormat("Q4_K", 256, 144, read_q4_k, fallback="Q5_0"),
        BlockFormat("Q5_K", 256, 176, read_q5_k, fallback="Q5_1"),
        BlockFormat("Q6_K", 256, 210, read_q6_k, fallback="Q8_0"),
    )
}
