"""LLM.int8(): outlier columns keep the input's precision, and the rest is int8."""

import math

import torch

from course_pkg.acceleration.quantization.llm_int8 import llm_int8_weight, quantize_rows
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from tests.acceleration.quantization.examples import normal
from tests.refusals import require_refusals


def test_rows_worked_by_hand():
    x = torch.tensor([[1.0, -6.0, 2.0, 0.0], [5.0, 1.0, 6.1, 0.0], [0.0, 0.0, 0.0, 0.0]])
    rows = quantize_rows(x, 6.0)
    assert rows.outliers.tolist() == [1, 2]
    assert rows.absmax.tolist() == [2, 5, 0]  # the 2 in an outlier column counts: it is below 6
    assert rows.codes.tolist() == [[64, 0, 0, 0], [127, 0, 0, 0], [0, 0, 0, 0]]
    rows = quantize_rows(x)
    assert rows.outliers.tolist() == [] and rows.codes[0].tolist() == [21, -127, 42, 0]
    assert torch.equal(x, torch.tensor([[1.0, -6, 2, 0], [5, 1, 6.1, 0], [0, 0, 0, 0]]))


def test_the_layer_tells_its_threshold():
    weight = normal(8, 16)
    layer = QuantizedLinear(llm_int8_weight(weight))
    assert layer.quantized.describe() == "LLM.int8, outliers from 6"
    assert llm_int8_weight(weight, None).describe() == "LLM.int8, no outliers"
    assert layer.quantized.effective_bits == 8 + 32 / 16
    assert layer.dequantized_weight().dtype == torch.float32
    assert llm_int8_weight(weight.bfloat16()).dequantize().dtype == torch.bfloat16


def test_a_token_with_nan_becomes_nan_and_one_beyond_fp16_stays_finite():
    weight = llm_int8_weight(normal(8, 16))
    x = normal(3, 16, seed=1)
    expected = weight.matmul(x)
    x[1, 2] = math.nan
    result = weight.matmul(x)
    assert result[1].isnan().all() and torch.equal(result[[0, 2]], expected[[0, 2]])
    x[1, 2] = 1e6
    result = weight.matmul(x)
    assert torch.allclose(result[1], 1e6 * weight.dequantize()[:, 2], rtol=1e-3, atol=100)


def test_bad_arguments_are_refused():
    require_refusals(
        (normal(4), "ValueError: expected a matrix"),
        (torch.full((2, 2), 1e5), "ValueError: .*entries up to 100000; .* below 65,520"),
        (torch.full((2, 2), math.nan), "ValueError: .*NaN"),
        (normal(2, 2), 0, "ValueError: threshold must be above 0 and finite, got 0"),
        (normal(2, 2), "6", "TypeError: threshold must be a number"),
        of=llm_int8_weight,
        errors=(TypeError, ValueError),
    )
