"""The levels, compared with hand calculations and published tables."""

import pytest
import torch

from course_pkg.quantization.blockwise import quantize
from course_pkg.quantization.code_books import code_book, dynamic_levels
from course_pkg.quantization.levels import (
    fp4_levels,
    int4_levels,
    nf4_levels,
    quantize_block,
)

PUBLISHED = [  # QLoRA, appendix E
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
]


def test_nf4_equals_the_published_table_bit_for_bit():
    assert nf4_levels() == code_book("nf4").levels.tolist() == PUBLISHED


def test_fp4_by_hand():
    # 12ths: 0, 1/16, then 8 and 12, 4 and 6, 2 and 3: each exponent halves, m adds half.
    expected = [0, 1 / 192, 8 / 12, 1, 4 / 12, 6 / 12, 2 / 12, 3 / 12]
    assert fp4_levels()[:8] == pytest.approx(expected)
    assert fp4_levels()[8:] == [-level for level in fp4_levels()[:8]]


def test_int4_is_symmetric_with_equal_steps():
    levels = torch.tensor(int4_levels())
    assert levels.diff().tolist() == pytest.approx([1 / 7] * 14)
    assert torch.equal(levels, -levels.flip(0))


def test_the_dynamic_code_by_hand():
    levels = dynamic_levels()
    assert len(levels.unique()) == 256 and torch.equal(levels, levels.sort().values)
    # The largest power has 64 steps of 0.9 / 64 between 0.1 and 1; the smallest is 0.55e-6.
    assert levels[-2].item() == pytest.approx(1 - 0.9 / 128)
    assert levels[191].item() == pytest.approx(0.1 + 0.9 / 128)
    assert levels[128].item() == pytest.approx(0.55e-6)
    assert levels[127] == 0 and torch.equal(levels[:127], -levels[128:255].flip(0))


@pytest.mark.parametrize("name", ["nf4", "fp4", "int4"])
def test_bounds_separate_neighbors(name):
    book = code_book(name)
    ascending = book.levels[book.ascending_codes]
    assert (ascending[:-1] <= book.bounds).all() and (book.bounds <= ascending[1:]).all()
    assert len(book.bounds) == len(book.levels) - 1


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
