"""Scales, zero points and codes of 8 bits, and the two storages of a weight."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from course_pkg.acceleration.quantization import int8_matmul as products
from course_pkg.acceleration.quantization.int8 import (
    W8A8,
    W8A16,
    Activations,
    affine_scale,
    calibrate,
    dequantize,
    int8_weight,
    quantize,
    symmetric_scale,
)
from course_pkg.acceleration.quantization.int8_matmul import affine_matmul
from tests.acceleration.quantization.examples import normal
from tests.refusals import wrong_refusals
from tests.tolerance import rounding

NUMBERS = st.floats(-(2.0**20), 2.0**20, width=32)
MATRICES = arrays("float32", (3, 5), elements=NUMBERS).map(torch.from_numpy)


@settings(max_examples=40)
@given(MATRICES, st.sampled_from(["row", "tensor"]), st.integers(2, 8))
def test_symmetric_rounding_errs_by_half_a_step_and_uses_the_largest_code(x, per, bits):
    scale = symmetric_scale(x, per, bits)
    codes = quantize(x, scale, bits=bits)
    largest = 2 ** (bits - 1) - 1
    error = (dequantize(codes, scale) - x).abs()
    assert (error <= scale * (0.5 + 1e-4)).all()  # the codes of the ends are exact but for fp32
    whole = codes if per == "row" else codes.view(1, -1)
    numbers = x if per == "row" else x.view(1, -1)
    reached = whole.abs().amax(1) == largest
    assert (reached | (numbers.abs().amax(1) / largest < 1.2e-38)).all()
    assert torch.equal(quantize(-x, scale, bits=bits), -codes)


@settings(max_examples=40)
@given(MATRICES, st.sampled_from(["row", "tensor"]), st.integers(2, 8))
def test_affine_rounding_errs_by_one_step_at_the_ends_and_represents_zero(x, per, bits):
    scale, zero = affine_scale(x, per, bits)
    codes = quantize(x, scale, zero, bits)
    assert zero.frac().eq(0).all() and codes.min() >= -(2 ** (bits - 1))
    assert codes.max() <= 2 ** (bits - 1) - 1
    error = (dequantize(codes, scale, zero) - x).abs()
    assert (error <= scale * (1 + 1e-4)).all()  # half a step, and half because z is rounded
    assert torch.equal(dequantize(quantize(x * 0, scale, zero, bits), scale, zero), x * 0)


def test_scales_worked_by_hand():
    x = torch.tensor([[-1.0, 0.0, 2.0], [0.0, 3.0, 12.75]])
    assert torch.equal(symmetric_scale(x), torch.tensor([[2.0], [12.75]]) / 127)
    assert torch.equal(symmetric_scale(x, "tensor"), torch.tensor([12.75 / 127]))
    scale, zero = affine_scale(x)  # ranges of 3 and 12.75 in 255 steps; 0 is code 85 of the first
    assert torch.equal(scale, torch.tensor([[3.0], [12.75]]) / 255)
    assert zero.tolist() == [[85 - 128], [-128]]
    scale, zero = affine_scale(x, "tensor")
    assert torch.allclose(scale, torch.tensor([13.75 / 255]))
    assert zero.tolist() == [round(255 / 13.75) - 128]
    for x, expected in (([5.0, 10.0], -128), ([-10.0, -5.0], 127)):  # 0 is in the range
        scale, zero = affine_scale(torch.tensor([x]))
        assert scale.item() == pytest.approx(10 / 255) and zero.item() == expected


def test_codes_worked_by_hand():
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, 300.0, -300.0])  # ties go to the even code
    assert quantize(x, torch.ones(1)).tolist() == [0, 2, 2, 0, 127, -127]
    assert quantize(x, torch.ones(1), torch.tensor([1.0])).tolist() == [1, 3, 3, 1, 127, -128]
    assert quantize(x, torch.ones(1), bits=7).tolist() == [0, 2, 2, 0, 63, -63]
    assert quantize(x, torch.ones(1), torch.zeros(1), bits=7).tolist() == [0, 2, 2, 0, 63, -64]


@pytest.mark.parametrize("value", [0.0, 1e-45, -1e-37])
def test_numbers_almost_too_small_for_a_scale_have_one(value):
    x = torch.full((2, 3), value)
    affine = affine_scale(x)
    for scale, zero in ((symmetric_scale(x), None), affine):
        assert scale.reciprocal().isfinite().all()
        error = dequantize(quantize(x, scale, zero), scale, zero) - x
        assert (error.abs() <= scale).all() and (value or (error == 0).all())


def test_calibration_takes_the_range_of_all_inputs():
    inputs = [normal(3, 4), 5 * normal(2, 2, 4, seed=1), normal(1, 4, seed=2)]
    everything = torch.cat([x.flatten() for x in inputs])
    scale, zero = calibrate(iter(inputs))
    assert torch.equal(scale, symmetric_scale(everything, "tensor")) and zero.tolist() == [0]
    scale, _ = calibrate(inputs, bits=7)
    assert torch.equal(scale, symmetric_scale(everything, "tensor", bits=7))
    for bits in (7, 8):
        scale, zero = calibrate(inputs, affine=True, bits=bits)
        expected = affine_scale(everything, "tensor", bits)
        assert torch.equal(scale, expected[0]) and torch.equal(zero, expected[1])


STORAGES = {
    "W8A16": None,
    "per token": Activations(),
    "per tensor": Activations("tensor"),
    "per token, affine": Activations(affine=True),
    "per tensor, affine": Activations("tensor", affine=True),
    "7 bits": Activations(bits=7),
    "7 bits, affine": Activations(affine=True, bits=7),
    "7 bits, per tensor, affine": Activations("tensor", affine=True, bits=7),
}


def stored(name, weight):
    return int8_weight(weight, STORAGES[name])


@pytest.mark.parametrize(
    ("name", "k", "n"),
    [
        *((name, 33, 97) for name in STORAGES),
        *(("W8A16", k, n) for k, n in ((1, 1), (1023, 5), (64, 32))),
        *(("7 bits, per tensor, affine", k, n) for k, n in ((1, 1), (1023, 5))),
        ("per token, affine", 1, 1),
    ],
)
def test_the_product_is_close_to_that_in_full_precision(name, k, n):
    weight = normal(n, k)
    x = normal(2, 3, k, seed=1) + 0.5
    storage = stored(name, weight)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        result = storage.matmul(x.to(dtype))
        expected = F.linear(x.to(dtype).double(), weight.double())
        assert result.dtype == dtype and result.shape == (2, 3, n)
        # steps of max/127 with max at 3 to 4 σ: each of the two roundings errs by 0.9 % of σ
        bound = 0.03 if "7 bits" in name else 0.018
        assert (result - expected).norm() <= (bound + 2 * torch.finfo(dtype).eps) * expected.norm()


@pytest.mark.parametrize("name", [name for name in STORAGES if name != "W8A16"])
def test_the_product_is_that_of_the_codes_exactly(name):
    """All numbers are dequantized codes, so that the formula can be computed in fp64."""
    weight = normal(7, 40)
    x = normal(4, 40, seed=1) - 0.3
    storage = stored(name, weight)
    activations = STORAGES[name]
    bits = activations.bits
    zero = None
    if activations.affine:
        scale, zero = affine_scale(x, activations.per, bits)
    else:
        scale = symmetric_scale(x, activations.per, bits)
    codes = quantize(x, scale, zero if activations.affine else None, bits)
    integers = affine_matmul(codes, 0 if zero is None else zero, storage.codes)
    expected = integers.double() * scale.double() * storage.scale.double().T
    assert torch.allclose(storage.matmul(x).double(), expected, rtol=rounding(9), atol=0)
    rounded = dequantize(codes, scale, zero) @ storage.dequantize().T
    error = (storage.matmul(x) - rounded).norm()
    assert error <= rounding(x.shape[-1] + 1) * rounded.norm()


def test_each_token_has_its_own_scale_or_all_share_one():
    weight = normal(8, 16)
    x = normal(3, 16, seed=1)
    big = torch.cat([x, 1000 * normal(1, 16, seed=2)])
    for name, independent in (("per token", True), ("per tensor", False)):
        storage = stored(name, weight)
        assert torch.equal(storage.matmul(big)[:3], storage.matmul(x)) == independent, name


def test_nan_in_a_token_stays_visible():
    x = normal(2, 32)
    x[1, 5] = math.nan
    for name in STORAGES:
        result = stored(name, normal(8, 32)).matmul(x)
        assert result[1].isnan().all(), name
        shared = "per tensor" in name
        assert result[0].isnan().all() == shared, name


def test_weight_rows_have_their_own_scales():
    weight = torch.tensor([[127.0, 1.0], [1270.0, 0.4], [0.0, 0.0]])
    storage = int8_weight(weight)
    assert storage.codes.tolist() == [[127, 1], [127, 0], [0, 0]]
    assert storage.scale.flatten().tolist() == [1, 10, torch.finfo(torch.float32).tiny]
    assert torch.equal(storage.dequantize(), torch.tensor([[127.0, 1], [1270, 0], [0, 0]]))
    assert storage.dequantize(torch.float16).dtype == torch.float16
    assert int8_weight(weight.bfloat16()).dequantize().dtype == torch.bfloat16


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_on_a_gpu_large_activations_keep_finite_products(dtype):
    weight = int8_weight(normal(40, 4096).abs().cuda() / 64)
    x = torch.full((3, 4096), 100.0, dtype=dtype, device="cuda")  # sums of codes are about 10^7
    expected = F.linear(x.double(), weight.dequantize(torch.float64))
    assert torch.allclose(weight.matmul(x).double(), expected, rtol=2**-7, atol=0)


def test_names_and_bits_are_told():
    weight = normal(32, 64)
    names = {name: stored(name, weight).describe() for name in STORAGES}
    assert len(set(names.values())) == len(STORAGES)
    assert names["W8A16"] == "int8 weight"
    assert names["7 bits, affine"] == "int8 weight, int7 activations per token, affine"
    assert stored("W8A16", weight).effective_bits == 8 + 32 / 64
    assert stored("per token", weight).effective_bits == 8 + 64 / 64
    assert isinstance(stored("W8A16", weight), W8A16)
    assert isinstance(stored("per tensor", weight), W8A8)


def test_seven_bits_use_the_fast_kernel(monkeypatch):
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this torch has no FBGEMM")
    monkeypatch.setattr(products, "int8_matmul", None)  # would fail if it were called
    stored("7 bits", normal(4, 8)).matmul(normal(2, 8))
    with pytest.raises(TypeError):
        stored("per token", normal(4, 8)).matmul(normal(2, 8))


def test_bad_arguments_are_refused():
    refused = [
        (lambda: symmetric_scale(normal(2), "column"), ValueError, "per must be one of row, tens"),
        (lambda: symmetric_scale(normal(2), bits=9), ValueError, "bits must be from 2 to 8, got 9"),
        (lambda: affine_scale(normal(2), bits=1), ValueError, "bits must be an integer of at leas"),
        (lambda: calibrate([]), ValueError, "there are no calibration inputs"),
        (lambda: calibrate([torch.tensor([math.nan])]), ValueError, "tensor of finite numbers"),
        (lambda: calibrate([torch.ones(0)]), ValueError, r"finite numbers, got \(0,\)"),
        (lambda: calibrate([normal(2)], affine=1), TypeError, "affine must be True or False"),
        (lambda: Activations("token"), ValueError, "per must be one of row, tensor, got 'token'"),
        (lambda: Activations(bits=6), ValueError, "activations can have 7 or 8 bits, got 6"),
        (lambda: Activations(affine=None), TypeError, "affine must be True or False"),
        (lambda: int8_weight(normal(4)), ValueError, "expected a matrix of floats"),
        (lambda: int8_weight(normal(2, 2) / 0), ValueError, "NaN or infinite"),
    ]
    assert not wrong_refusals(refused)
