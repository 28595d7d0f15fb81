"""A row on an affine grid, against the tensors of `int8`."""

import pytest
import torch

from course_pkg.quantization.affine_row import affine_row
from course_pkg.quantization.int8 import affine_scale, dequantize, quantize


@pytest.mark.parametrize("shift", [-2.0, 0.0, 0.3, 5.0])
def test_a_row_has_the_numbers_of_a_tensor(shift):
    generator = torch.Generator().manual_seed(0)
    for power in range(-6, 7):
        x = (torch.randn(64, generator=generator) + shift) * 10.0**power
        scale, zero = affine_scale(x, "tensor", bits=4)
        codes = quantize(x, scale, zero, bits=4)
        row = affine_row(x.tolist())
        assert (row.scale, row.zero) == (scale.item(), zero.item())
        assert row.codes == codes.tolist()
        assert row.dequantize() == dequantize(codes, scale, zero).tolist()


@pytest.mark.parametrize("numbers", [[0.0, 0.0], [1e-40], [-0.0], [0.3, 0.3], [-3e37, 3e37]])
def test_zeros_and_extremes(numbers):
    scale, zero = affine_scale(torch.tensor(numbers), "tensor", bits=4)
    row = affine_row(numbers)
    assert (row.scale, row.zero) == (scale.item(), zero.item())
    assert row.codes == quantize(torch.tensor(numbers), scale, zero, bits=4).tolist()


def test_a_row_without_numbers_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        affine_row([])
