"""Products of int8 codes are exact integers, whichever kernel computes them."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.acceleration.quantization import int8_matmul as module
from course_pkg.acceleration.quantization.int8_matmul import (
    EXACT_COLUMNS,
    Int8Kernel,
    affine_matmul,
    float_rows_matmul,
    int8_matmul,
)
from tests.refusals import require_refusals


def codes(*shape, low=-128, high=127, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high + 1, shape, generator=generator, dtype=torch.int8)


def in_64_bits(a, b):
    return (a.long() @ b.long().T).int()


@pytest.mark.parametrize(
    ("rows", "k", "n"), [(2, 1023, 3), (5, 2048, 9), (1, 4099, 2), (0, 4, 2), (2, 3, 0)]
)
def test_the_product_equals_that_in_64_bit_integers(rows, k, n):
    a = codes(rows, k)
    b = codes(n, k, seed=1)
    result = int8_matmul(a, b)
    assert result.dtype == torch.int32 and torch.equal(result, in_64_bits(a, b))


@pytest.mark.parametrize("k", [EXACT_COLUMNS, EXACT_COLUMNS + 1, 5000])
def test_the_largest_sums_are_exact(k):
    """−128 · −128 everywhere is 2^14 · k; one product of 1 makes the last bit count."""
    a = torch.full((2, k), -128, dtype=torch.int8)
    b = a.clone()
    a[1, 0] = b[1, 0] = 1
    assert torch.equal(int8_matmul(a, b), in_64_bits(a, b))
    assert int8_matmul(a, b)[0, 0] == 2**14 * k
    a[0, -1] = 127  # an odd number of 127 · −128 is no multiple of 2^8
    b[0, -1] = -127
    assert torch.equal(int8_matmul(a, b), in_64_bits(a, b))


def exact_int_mm(a, b):
    return (a.long() @ b.long()).int()


def saturating_int_mm(a, b):
    """Adds two neighbors' products in 16 bits, as CPUs without VNNI do."""
    products = a.long()[:, None] * b.long().T  # (m, n, k)
    pairs = products.unflatten(-1, (-1, 2)).sum(-1)
    return pairs.clamp(-(2**15), 2**15 - 1).sum(-1).int()


@pytest.mark.parametrize(
    ("capability", "kernel", "k", "is_used"),
    [
        ("AVX512", exact_int_mm, 64, True),
        ("AVX512", exact_int_mm, 1, False),
        ("AVX512", saturating_int_mm, 64, False),
        ("AVX2", exact_int_mm, 64, False),
    ],
)
def test_torchs_integer_kernel_is_used_where_it_is_fast_and_exact(
    capability, kernel, k, is_used, monkeypatch
):
    used = []

    def recorded(a, b):
        used.append(tuple(b.shape) == (k, 8))
        return kernel(a, b)

    monkeypatch.setattr(torch, "_int_mm", recorded)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(module, "_int_mm_is_exact", module._int_mm_is_exact.__wrapped__)
    a = codes(2, 3, k)
    b = codes(8, k, seed=1)
    assert torch.equal(int8_matmul(a, b), in_64_bits(a, b))
    assert any(used) == is_used


@settings(max_examples=40)
@given(st.integers(-128, 127), st.integers(-128, 127), st.integers(1, 40), st.integers(0, 9))
def test_zero_points_are_corrected(zero_a, zero_b, k, seed):
    a = codes(3, k, seed=seed)
    b = codes(4, k, seed=seed + 1)
    expected = (a.long() - zero_a) @ (b.long() - zero_b).T
    assert torch.equal(affine_matmul(a, zero_a, b, zero_b), expected.int())


def test_zero_points_may_differ_by_row():
    a = codes(2, 3, 9)
    b = codes(4, 9, seed=1)
    zero_a = codes(2, 3, 1, seed=2)
    zero_b = codes(4, 1, seed=3)
    expected = (a.long() - zero_a) @ (b.long() - zero_b).T
    assert torch.equal(affine_matmul(a, zero_a, b, zero_b), expected.int())


def test_with_its_scales_a_product_of_codes_fits_into_fp16(monkeypatch):
    monkeypatch.setattr(module, "CONVERTED", 128)  # two rows at a time; the last by itself
    x = torch.full((2, 64), 300.0, dtype=torch.float16)  # as some features of activations are
    b = torch.full((5, 64), 127, dtype=torch.int8)
    scale = torch.arange(1.0, 6.0)[:, None] / 1000
    expected = x.double() @ (b * scale).double().T  # up to 12,192
    assert torch.isinf(float_rows_matmul(x, b)).all()
    product = float_rows_matmul(x, b, scale)
    assert torch.allclose(product.double(), expected, rtol=2**-9, atol=0)  # rounded twice


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_round_sums(dtype):
    a = codes(3, 900)
    b = codes(5, 900, seed=1)
    x = torch.full((3, 900), 30.0)
    with torch.autocast("cpu", dtype=dtype):
        product = int8_matmul(a, b)
        of_floats = float_rows_matmul(x, b.abs())
    assert torch.equal(product, in_64_bits(a, b).int())
    assert torch.equal(of_floats, float_rows_matmul(x, b.abs()))


def test_conversion_in_pieces_changes_nothing(monkeypatch):
    x = torch.randn(2, 3, 10, dtype=torch.float64)
    b = codes(7, 10)
    monkeypatch.setattr(module, "CONVERTED", 25)  # two rows at a time; the last by itself
    assert torch.allclose(float_rows_matmul(x, b), x @ b.double().T, rtol=0, atol=1e-10)
    monkeypatch.setattr(module, "CONVERTED", 3)  # less than a row
    assert torch.allclose(float_rows_matmul(x, b), x @ b.double().T, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("rows", "k", "n"), [(2, 1025, 3), (0, 4, 2), (33, 576, 64)])
def test_seven_bits_are_exact_in_the_kernel_and_eight_as_well(rows, k, n):
    b = codes(n, k, seed=1)
    for bits in (7, 8):
        a = codes(rows, k, low=-(2 ** (bits - 1)), high=2 ** (bits - 1) - 1)
        expected = in_64_bits(a, b).float()
        assert torch.equal(Int8Kernel()(a.float(), b, bits), expected)


def test_the_largest_codes_of_seven_bits_do_not_overflow_in_the_kernel():
    for low in (-64, 63):
        a = torch.full((2, 64), low, dtype=torch.int8)
        for weight in (-128, 127):
            b = torch.full((32, 64), weight, dtype=torch.int8)
            assert (Int8Kernel()(a.float(), b, 7) == 64 * low * weight).all()


def test_without_the_kernel_the_numbers_are_the_same(monkeypatch):
    a = codes(4, 40, low=-64, high=63).float()
    b = codes(6, 40)
    expected = Int8Kernel()(a, b, 7)
    monkeypatch.setattr(module, "_pack_for_fbgemm", None)  # would fail if it were called
    monkeypatch.setattr(module, "_has_fbgemm", lambda x: False)
    assert torch.equal(Int8Kernel()(a, b, 7), expected)


@pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="no FBGEMM")
def test_the_kernel_packs_once_and_again_when_the_weight_changes(monkeypatch):
    packed = []

    def recorded(weight, original=module._pack_for_fbgemm):
        packed.append(weight)
        return original(weight)

    monkeypatch.setattr(module, "_pack_for_fbgemm", recorded)
    engines = torch.backends.quantized.supported_engines
    engine = next(name for name in engines if name not in ("none", "fbgemm"))
    monkeypatch.setattr(torch.backends.quantized, "engine", engine)
    kernel = Int8Kernel()
    a = codes(2, 16, low=-64, high=63)
    b = codes(3, 16)
    for _ in range(2):
        assert torch.equal(kernel(a.float(), b.detach(), 7), in_64_bits(a, b).float())
    assert len(packed) == 1 and torch.backends.quantized.engine == engine
    other = codes(3, 16, seed=6)
    assert torch.equal(kernel(a.float(), other, 7), in_64_bits(a, other).float())
    other.copy_(codes(3, 16, seed=5))  # in place, as load_state_dict does
    assert torch.equal(kernel(a.float(), other.detach(), 7), in_64_bits(a, other).float())
    assert len(packed) == 3
    for copied in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert copied._packed is None
    with torch.inference_mode():
        assert torch.equal(kernel(a.float(), codes(3, 16), 7), in_64_bits(a, codes(3, 16)).float())


def test_what_cannot_be_multiplied_is_refused():
    require_refusals(
        (torch.ones(2, 3), codes(2, 3), "TypeError: a must be an int8 tensor, got torch.float32"),
        (codes(2, 3), [1], "TypeError: b must be an int8 tensor, got list; quantize it first"),
        (codes(2, 3), codes(2, 4), r"ValueError: .*got \(2, 3\) and \(2, 4\)"),
        (codes(3), codes(1, 1, 3), r"ValueError: .*got \(3,\) and \(1, 1, 3\)"),
        (codes(1, 131_072), codes(1, 131_072), "ValueError: .*pieces of at most 131071"),
        of=int8_matmul,
        errors=(TypeError, ValueError),
    )


def test_a_zero_point_makes_sums_longer():
    a = torch.full((1, 33_025), 127, dtype=torch.int8)
    assert affine_matmul(a, -128, a, -128).item() == 33_025 * 255**2
    a = codes(1, 33_026)
    with pytest.raises(ValueError, match=r"a sum of 33026 .* at most 33025"):
        affine_matmul(a, 0, a)
