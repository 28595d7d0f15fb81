"""The levels, compared with hand calculations."""

import pytest
import torch

from course_pkg.acceleration.quantization.blockwise import code_book, quantize
from course_pkg.acceleration.quantization.levels import (
    fp4_levels,
    int4_levels,
    quantize_block,
)


def test_fp4_and_int4_by_hand():
    # 12ths: 0, 1/16, then 8 and 12, 4 and 6, 2 and 3: each exponent halves, m adds half.
    expected = [0, 1 / 192, 8 / 12, 1, 4 / 12, 6 / 12, 2 / 12, 3 / 12]
    assert fp4_levels()[:8] == pytest.approx(expected)
    assert fp4_levels()[8:] == [-level for level in fp4_levels()[:8]]
    assert int4_levels() == pytest.approx([i / 7 for i in range(-7, 8)])


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
