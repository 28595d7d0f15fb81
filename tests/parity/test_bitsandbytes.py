"""Codes and scales equal those of bitsandbytes on a CPU, bit for bit; so do dequantized numbers.

`equal` has the exceptions: NaN, the sign of zero, and very small numbers in bf16.
"""

import math

import pytest
import torch
from bitsandbytes import functional as bnb
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute

from course_pkg.acceleration.quantization.blockwise import (
    code_book,
    dynamic_levels,
    quantize,
    quantize_scales,
)
from tests.acceleration.quantization.examples import normal


def special(value, where=(5,)):
    """Normal numbers, some of them replaced."""
    numbers = normal(16, 128)
    numbers.view(-1)[list(where)] = value
    return numbers


def midpoints(book):
    """Numbers on the bounds between levels, and the numbers next to them."""
    bounds = code_book(book).bounds
    near = [torch.nextafter(bounds, torch.full_like(bounds, end)) for end in (-2.0, 2.0)]
    return torch.cat([bounds, *near, torch.ones(64 - 45)])


INPUTS = {
    "random": normal(128, 192),
    "many blocks": normal(512, 70, seed=1),
    "outliers": normal(64, 256, seed=2) ** 7,
    "tiny and large rows": normal(64, 256) * torch.logspace(-30, 30, 64)[:, None],
    "constant": torch.full((32, 64), 0.3),
    "zeros": torch.zeros(32, 64),
    "some blocks of zeros": normal(64, 256) * (torch.arange(64) % 3 == 0)[:, None],
    "negative zeros": torch.full((32, 64), -0.0),
    "ragged, odd rows": normal(33, 65),
    "one number": torch.tensor([[0.7]]),
    "three numbers": torch.tensor([[0.7, -0.1, 1e-20]]),
    "1-D": normal(1000),
    "3-D": normal(3, 5, 70),
    "huge": torch.full((32, 64), 3.4e38) * normal(32, 64).sign(),
    "huge and small": normal(32, 64) * torch.tensor([3e37, 1e-10]).repeat(32),
    "subnormal": normal(32, 64) * 1e-40,
    "smallest": torch.full((32, 64), 1e-45),
    "around the guard": normal(32, 64) * 1e-38,
    "on the midpoints of NF4": midpoints("nf4").view(1, 64),
    "on the midpoints of FP4": midpoints("fp4").view(1, 64),
    "NaN": special(math.nan),
    "NaN in both halves of bytes": special(math.nan, (4, 7, 900, 901)),
    "infinite": special(math.inf),
    "minus infinite": special(-math.inf, (64, 65, 300)),
    "not contiguous": normal(192, 128).T,
}


@pytest.fixture(autouse=True)
def without_compiling():
    """bitsandbytes compiles its fallback for each odd shape, which takes minutes."""
    with torch.compiler.set_stance("force_eager"):
        yield


def equal(ours, theirs):
    """Bit for bit, except that NaN equals NaN and 0 equals -0.

    The code 8 of FP4 is 0 or -0 in bitsandbytes, depending on the processor and the shape. In bf16,
    numbers up to 2^-126 count as zeros: the instruction with which bitsandbytes rounds to bf16 on
    some processors (AVX-512 BF16) flushes what is below 2^-126 before it rounds.
    """
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    if not ours.is_floating_point():
        return torch.equal(ours, theirs)
    if ours.dtype == torch.bfloat16:
        ours, theirs = (tensor * (tensor.abs() > 2.0**-126) for tensor in (ours, theirs))
    return bool(((ours == theirs) | (ours.isnan() & theirs.isnan())).all())


def require_equal(weight, book, size, double):
    packed, state = bnb.quantize_4bit(
        weight.contiguous(), blocksize=size, quant_type=book, compress_statistics=double
    )
    ours = quantize(weight, book, size, double=double)
    assert equal(ours.codes, packed.view(-1))
    if double:
        assert equal(ours.absmax.codes, state.absmax)
        assert equal(ours.absmax.absmax, state.state2.absmax)
        assert equal(ours.absmax.offset, state.offset)
    else:
        assert equal(ours.absmax, state.absmax)
    # bitsandbytes gives a 1-D tensor back as one row
    assert equal(ours.dequantize(), bnb.dequantize_4bit(packed, state).view(weight.shape))


BOTH = pytest.mark.parametrize(("book", "double"), [("nf4", True), ("fp4", False)])


@BOTH
@pytest.mark.parametrize("name", INPUTS)
def test_codes_scales_and_numbers_are_equal(name, book, double):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        require_equal(INPUTS[name].to(dtype), book, 64, double)


@BOTH
def test_every_block_size_is_equal(book, double):
    for size in (32, 64, 128, 256, 512, 1024, 2048, 4096):
        for weight in (normal(8, 4096), normal(33, 66), normal(17, 301).bfloat16()):
            require_equal(weight, book, size, double)


@pytest.mark.parametrize("size", [128, 256, 1024])
def test_blocks_that_cross_rows_equal_the_general_implementation(size):
    """bitsandbytes 0.50.2 takes the scale of another block here, on processors with AVX-512.

    Its implementation for other processors, in torch, does not.
    """
    weight = normal(128, 192)
    packed, state = bnb.quantize_4bit(weight, blocksize=size, quant_type="nf4")
    theirs = _dequantize_4bit_compute(
        packed.view(-1), state.absmax, state.code, size, weight.shape, torch.float32
    )
    ours = quantize(weight, "nf4", size, double=False)
    assert equal(ours.codes, packed.view(-1)) and equal(ours.dequantize(), theirs)
    assert (ours.dequantize() - weight).norm() <= 0.12 * weight.norm()


def test_the_levels_are_those_of_bitsandbytes():
    for book in ("nf4", "fp4"):
        assert torch.equal(code_book(book).levels, bnb.get_4bit_type(book, "cpu"))
    assert equal(dynamic_levels(), bnb.create_dynamic_map())


@pytest.mark.parametrize("seed", range(2))
def test_scales_of_many_magnitudes_are_equal(seed):
    for exponent in (-40, -30, -3, 0, 4, 30):
        scales = normal(3000, seed=seed).abs() * 10.0**exponent
        codes, state = bnb.quantize_blockwise(scales - scales.mean(), blocksize=256)
        ours = quantize_scales(scales)
        assert equal(ours.codes, codes) and equal(ours.absmax, state.absmax)
        assert equal(ours.dequantize(), bnb.dequantize_blockwise(codes, state) + scales.mean())
