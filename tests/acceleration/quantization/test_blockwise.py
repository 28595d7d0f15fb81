"""Levels, blockwise and double quantization: hand calculations, invariants, and errors."""

import pytest
import torch

from course_pkg.acceleration.quantization.blockwise import (
    code_book,
    effective_bits,
    quantize,
    quantize_scales,
    stored_bytes,
)
from course_pkg.acceleration.quantization.levels import int4_levels, quantize_block
from tests.acceleration.quantization.examples import normal
from tests.refusals import require_refusals


def test_int4_by_hand():
    assert int4_levels() == pytest.approx([i / 7 for i in range(-7, 8)])


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="code_book must be one of nf4, fp4, int4, got 'nf5'"):
        code_book("nf5")


@pytest.mark.parametrize("book", ["nf4", "fp4", "int4"])
def test_a_block_of_plain_numbers_has_the_codes_of_a_tensor(book):
    generator = torch.Generator().manual_seed(0)
    middles = code_book(book).bounds
    rows = [torch.randn(64, generator=generator) * 10.0**power for power in range(-6, 7)]
    rows += [torch.zeros(64), torch.cat([middles, torch.ones(64 - len(middles))])]
    for row in rows:
        whole = quantize(row, book, 64, double=False)
        block = quantize_block(row.tolist(), book)
        codes = [code for byte in whole.codes.tolist() for code in divmod(byte, 16)]
        assert block.codes == codes and block.absmax == whole.absmax.item()
        assert block.dequantize() == whole.dequantize().tolist()
    with pytest.raises(ValueError, match="at least one"):
        quantize_block([], book)


BOOKS = ["nf4", "fp4", "int4"]


def test_eight_numbers_by_hand():
    # Blocks (0.3, -0.6, 0, 0.15) and (2, 1, -1, 0.1), divided by 0.6 and 2: (0.5, -1, 0, 0.25) and
    # (1, 0.5, -0.5, 0.05). Nearest NF4 levels: 0.4407 (12), -1 (0), 0 (7), 0.2461 (10); 1 (15),
    # 0.4407 (12), -0.5251 (2), 0.0796 (8). The first code of a pair is in the high four bits.
    weight = torch.tensor([[0.3, -0.6, 0.0, 0.15], [2.0, 1.0, -1.0, 0.1]])
    quantized = quantize(weight, "nf4", block_size=4, double=False)
    assert [f"{byte:02x}" for byte in quantized.codes.tolist()] == ["c0", "7a", "fc", "28"]
    assert torch.equal(quantized.absmax, torch.tensor([0.6, 2.0]))
    expected = [0.264426, -0.6, 0, 0.147667, 2, 0.881420, -1.050146, 0.159161]
    assert quantized.dequantize().flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_double_quantization_by_hand():
    # The mean of (1, 2, 3, 6) is 3. The differences (-2, -1, 0, 3), divided by 3, are -0.667,
    # -0.333, 0 and 1. Levels between 0.1 and 1 are 0.1 + 0.9 (i + 1/2) / 64: the nearest to 0.667
    # is i = 40, 0.66953; to 0.333 it is i = 16, 0.33203.
    double = quantize_scales(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert (double.offset.item(), double.absmax.tolist()) == (3, [3])
    expected = [3 - 3 * 0.6695313, 3 - 3 * 0.3320312, 3, 6]
    assert double.dequantize().tolist() == pytest.approx(expected, abs=1e-3)


def test_effective_bits_by_hand():
    # QLoRA, section 3: 32/64 = 0.5 bit for scales; 8/64 + 32/(64·256) = 0.127 when quantized twice.
    assert effective_bits(64, 256) == 4 + 0.125 + 1 / 512
    assert effective_bits(64, None) == 4.5
    assert effective_bits(1, 1) == 44
    for bad in ((0, 256), (64, 0)):
        with pytest.raises(ValueError, match=">= 1"):
            effective_bits(*bad)


@pytest.mark.parametrize("shape", [(256, 192), (7,), (33, 65)])
def test_the_bytes_are_those_that_are_stored(shape):
    weight = normal(*shape)
    for double, constant in ((True, 256), (False, None)):
        quantized = quantize(weight, block_size=64, double=double)
        assert quantized.nbytes == stored_bytes(weight.numel(), 64, constant)
        assert quantized.effective_bits == 8 * quantized.nbytes / weight.numel()
    # One offset of 32 bits comes on top of the formula, which is for whole blocks.
    whole = quantize(normal(512, 256)).effective_bits
    assert whole == pytest.approx(effective_bits(64, 256) + 32 / (512 * 256))


def test_invalid_arguments_say_what_is_expected():
    require_refusals(
        (torch.ones(4), "nf8", "ValueError: code_book must be one of"),
        (torch.ones(4), "nf4", 7, "ValueError: block_size must be even"),
        (torch.ones(4), "nf4", 0, "ValueError: block_size must be an integer of at least 2"),
        (torch.ones(4), "nf4", 64.0, "ValueError: block_size must be an integer"),
        (torch.ones(4).double(), "TypeError: .*got torch.float64"),
        (torch.ones(4).int(), "TypeError: can quantize float32, bfloat16 and float16 tensors"),
        ([1.0], "TypeError: .*got list"),
        (torch.ones(0, 4), r"ValueError: cannot quantize an empty tensor, of shape \(0, 4\)"),
        of=quantize,
        errors=(TypeError, ValueError),
    )


def test_the_original_keeps_its_numbers_and_its_gradient():
    weight = normal(8, 64).requires_grad_()
    before = weight.detach().clone()
    assert not quantize(weight).dequantize().requires_grad
    assert torch.equal(weight, before)
