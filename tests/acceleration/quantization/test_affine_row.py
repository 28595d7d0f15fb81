"""A row on an affine grid, against the tensors of `int8`."""

import pytest
import torch

from course_pkg.acceleration.quantization.int8 import affine_scale, dequantize, quantize
from course_pkg.acceleration.quantization.levels import affine_row
from tests.acceleration.quantization.examples import normal
from tests.tables import each_row

EXTREMES = ([0.0, 0.0], [1e-40], [-0.0], [0.3, 0.3], [-3e37, 3e37])
SHIFTED = [normal(64) + shift for shift in (-2.0, 0.0, 0.3, 5.0)]


@each_row(
    "x",
    [*map(torch.tensor, EXTREMES), *(x * 10.0**power for x in SHIFTED for power in range(-6, 7))],
)
def test_a_row_has_the_numbers_of_a_tensor(x):
    scale, zero = affine_scale(x, "tensor", bits=4)
    codes = quantize(x, scale, zero, bits=4)
    row = affine_row(x.tolist())
    assert (row.scale, row.zero) == (scale.item(), zero.item())
    assert row.codes == codes.tolist()
    assert row.dequantize() == dequantize(codes, scale, zero).tolist()


def test_a_row_without_numbers_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        affine_row([])
