"""LLM.int8() equals bitsandbytes' implementation for CPUs, bit for bit, but for one constant.

bitsandbytes multiplies by 6.200124e-05 in place of 1/127². With its constant, results are equal.
"""

import logging

import bitsandbytes
import pytest
import torch
from bitsandbytes import functional as bnb

from course_pkg.acceleration.quantization import llm_int8
from course_pkg.acceleration.quantization.int8_matmul import _int_mm_is_exact, int8_matmul
from course_pkg.acceleration.quantization.llm_int8 import llm_int8_weight, quantize_rows
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from tests.acceleration.quantization.examples import normal

THEIR_STEP_SQUARED = 6.200124e-05


@pytest.fixture(autouse=True)
def without_compiling(monkeypatch):
    """bitsandbytes compiles its fallback for each shape, which takes minutes.

    It calls `torch._int_mm` on every CPU, which with AVX-512 but no VNNI adds two products in 16
    bits. Ours is not called there.
    """
    if not _int_mm_is_exact():
        monkeypatch.setattr(torch, "_int_mm", lambda a, b: (a.long() @ b.long()).int())
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # "inputs will be cast"
    with torch.compiler.set_stance("force_eager"):
        yield


def with_outliers(rows, columns, *values):
    """Normal numbers, some of which are replaced by the values."""
    x = normal(rows, columns, seed=rows).clamp(-4, 4)
    for number, value in enumerate(values):
        x[number % rows, (7 * number + 3) % columns] = value
    return x


INPUTS = {
    "no outliers": with_outliers(6, 40),
    "outliers": with_outliers(6, 40, 8.0, -20.0, 6.0, -6.0, 5.99),
    "one token": with_outliers(1, 40, 8.0, -9.0),
    "one token without outliers": with_outliers(1, 40),
    "all outliers": torch.full((3, 8), 7.0),
    "rounded up to 6": with_outliers(4, 33, 5.9999),
    "odd sizes": with_outliers(5, 97, 30.0),
    "long rows": with_outliers(3, 1025, -7.0, 11.0),
    "tiny": with_outliers(3, 16) * 1e-6,
}


@pytest.mark.parametrize("name", INPUTS)
def test_codes_magnitudes_and_outlier_columns_are_equal(name):
    x = INPUTS[name]
    for threshold in (6.0, 0.5, None):
        theirs = bnb.int8_vectorwise_quant(x.half(), threshold or 0.0)
        ours = quantize_rows(x, threshold)
        assert torch.equal(ours.codes, theirs[0]) and torch.equal(ours.absmax, theirs[1]), threshold
        assert ours.outliers.tolist() == ([] if theirs[2] is None else theirs[2].tolist())


def pair(columns, threshold, dtype):
    """Their layer and ours, of one weight, with 24 outputs."""
    linear = torch.nn.Linear(columns, 24, bias=False)
    torch.nn.init.normal_(linear.weight, generator=torch.Generator().manual_seed(1))
    options = {"has_fp16_weights": False, "threshold": threshold or 0.0}
    theirs = bitsandbytes.nn.Linear8bitLt(columns, 24, bias=False, **options)
    theirs.load_state_dict(linear.state_dict())
    ours = QuantizedLinear(llm_int8_weight(linear.weight.to(dtype), threshold))
    return theirs.to("cpu").requires_grad_(False).eval(), ours


@pytest.mark.parametrize(
    ("name", "threshold", "dtype"),
    [
        *((name, 6.0, torch.float32) for name in INPUTS),
        ("outliers", 6.0, torch.float16),
        ("long rows", 6.0, torch.bfloat16),
        ("outliers", None, torch.float32),
        ("one token", None, torch.bfloat16),
    ],
)
def test_the_layer_is_equal_with_their_constant(name, threshold, dtype, monkeypatch):
    x = INPUTS[name].to(dtype)
    theirs, ours = pair(x.shape[1], threshold, torch.float32)
    expected = theirs(x)
    assert expected.dtype == dtype
    # 1.8e-5 of the int8 part, which may be larger than the sum, and the rounding to dtype
    close = {"rtol": 2e-5 + 2 * torch.finfo(dtype).eps, "atol": 5e-5 * expected.abs().max()}
    close["atol"] += torch.finfo(dtype).tiny
    assert torch.allclose(ours(x).double(), expected.double(), **close)
    monkeypatch.setattr(llm_int8, "STEP_SQUARED", THEIR_STEP_SQUARED)
    assert torch.equal(ours(x), expected)


def test_weights_and_integer_products_are_equal():
    weight = normal(24, 97)
    x = normal(5, 97)
    ours = llm_int8_weight(weight)
    codes, absmax, _ = bnb.int8_vectorwise_quant(weight.half())
    assert torch.equal(ours.codes, codes) and torch.equal(ours.absmax, absmax)
    dequantized = bnb.int8_vectorwise_dequant(codes, absmax)
    assert torch.equal(ours.dequantize(torch.float32), dequantized)
    rows = quantize_rows(x).codes
    assert torch.equal(int8_matmul(rows, codes), bnb.int8_linear_matmul(rows, codes))
