"""The W4A16 kernel: in Triton's interpreter on a CPU; the same tests and more on a GPU."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.acceleration.quantization import w4a16_triton
from course_pkg.acceleration.quantization.gptq import GPTQ
from course_pkg.acceleration.quantization.grouped import Grid, GroupedWeight, round_to_nearest
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.acceleration.quantization.w4a16_triton import (
    runs_kernel,
    step_columns,
    w4a16_matmul,
)
from course_pkg.common.triton_runtime import INTERPRETED
from tests.acceleration.attention.examples import DEVICE, needs_triton, python
from tests.refusals import wrong_refusals
from tests.tolerance import rounding

FLOAT32 = torch.float32 if DEVICE == "cpu" else torch.float16  # on a GPU, only 16 bits


def rounded(rows, columns, group_size=64, *, symmetric=False, bits=4, seed=0):
    """A quantized weight whose groups differ in scale and zero point."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator)
    weight *= torch.rand(rows, columns, generator=generator) + 0.5
    weight += torch.linspace(-2, 2, columns)
    return round_to_nearest(weight.to(DEVICE), Grid(bits, group_size, symmetric))


def inputs(*shape, dtype=FLOAT32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def product(x, weight):
    return w4a16_matmul(x, weight.codes, weight.scale, weight.zero)


def assert_exact(result, x, weight):
    """Within the rounding of the result and of sums in fp32, for each number of the result.

    u · |y| is what rounding y costs, and (columns + 8) · 2⁻²⁴ · Σ|w·x| bounds the error of a sum in
    any order, with the products by scales. A tensor core rounds its sums down: four times as much.
    """
    dense = weight.dequantize(torch.float64)  # exact: 11 bits of a scale times 5 bits
    expected = x.double() @ dense.T
    terms = x.double().abs() @ dense.abs().T
    unit = torch.finfo(x.dtype).eps / 2
    in_sums = (weight.columns + 8) * 2.0**-24 * (1 if DEVICE == "cpu" else 4)
    bound = unit * expected.abs() + (1 + unit) * in_sums * terms + 2.0**-25
    assert result.dtype == x.dtype and result.shape == expected.shape
    assert ((result.double() - expected).abs() <= bound).all()


# ---------------------------------------------------------------- the product


@needs_triton
@settings(max_examples=20)
@given(
    rows=st.integers(1, 40),
    groups=st.integers(1, 5),
    group_size=st.sampled_from([16, 32, 48, 64, 96, 128]),
    tokens=st.integers(1, 20),
    symmetric=st.booleans(),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, FLOAT32]),
    seed=st.integers(0, 99),
)
def test_it_equals_the_product_with_the_dequantized_weight(
    rows, groups, group_size, tokens, symmetric, dtype, seed
):
    weight = rounded(rows, groups * group_size, group_size, symmetric=symmetric, seed=seed)
    x = inputs(tokens, groups * group_size, dtype=dtype, seed=seed)
    assert_exact(product(x, weight), x, weight)


@needs_triton
@pytest.mark.parametrize(("columns", "tokens"), [(1024, 1), (1152, 16), (2176, 16), (2176, 33)])
def test_parts_of_the_columns_are_added_and_the_last_may_be_short(columns, tokens):
    weight = rounded(3, columns, 128)
    x = inputs(tokens, columns, dtype=torch.float16)
    assert_exact(product(x, weight), x, weight)


@needs_triton
def test_sums_of_parts_are_rounded_once():
    """2048 + 1 − 2048: float16 has no 2049, which is the sum of the first part."""
    codes = torch.full((1, 1024), 0x11, dtype=torch.uint8, device=DEVICE)
    zero = torch.tensor([[0, 2]], dtype=torch.uint8, device=DEVICE)  # weights of 1, then of −1
    x = torch.zeros(1, 2048, dtype=torch.float16, device=DEVICE)
    x[0, [0, 1, 1024]] = torch.tensor([2048.0, 1.0, 2048.0], device=DEVICE).half()
    assert w4a16_matmul(x, codes, torch.ones_like(zero).half(), zero).item() == 1


@needs_triton
def test_zero_points_and_codes_at_the_ends_of_their_range():
    codes = torch.tensor([[0x0F] * 16, [0xF0] * 16], dtype=torch.uint8, device=DEVICE)
    scale = torch.tensor([[2.0, 0.5], [1.0, 65504.0]], device=DEVICE).half()
    zero = torch.tensor([[0, 255], [15, 16]], dtype=torch.uint8, device=DEVICE)
    x = torch.zeros(4, 32, device=DEVICE, dtype=torch.bfloat16)
    x[0, 0] = x[1, 1] = x[2, 16] = x[3, 17] = 1  # one column each
    expected = [[30.0, -15.0], [0.0, 0.0], [-120.0, -16 * 65504], [-127.5, -65504.0]]
    result = w4a16_matmul(x, codes, scale, zero)
    assert torch.equal(result.cpu(), torch.tensor(expected).bfloat16())


@needs_triton
@pytest.mark.parametrize("shape", [(0,), (2, 3), (2, 0, 4), ()])
def test_any_number_of_leading_dimensions_and_none_of_tokens(shape):
    weight = rounded(7, 64)
    x = inputs(*shape, 64, dtype=torch.float16)
    assert_exact(product(x, weight), x, weight)


@needs_triton
def test_x_may_have_any_layout_in_memory():
    weight = rounded(7, 64)
    whole = inputs(6, 128, dtype=torch.float16)
    views = [
        whole[:, ::2],
        whole.T.contiguous().T[:, 64:],
        whole.unflatten(0, (2, 3)).transpose(0, 1)[..., :64],
        whole[:1, :64].expand(5, 64),
    ]
    for x in views:
        assert_exact(product(x, weight), x, weight)


@needs_triton
def test_codes_scales_and_zero_points_may_be_views():
    weight = rounded(14, 128)
    x = inputs(2, 128, dtype=torch.float16)
    result = w4a16_matmul(x, weight.codes[::2], weight.scale[::2], weight.zero[::2])
    assert torch.equal(result, product(x, weight)[:, ::2])


@needs_triton
@pytest.mark.parametrize("tokens", [16, 40])
def test_a_token_does_not_depend_on_the_others_of_a_small_or_of_a_large_batch(tokens):
    weight = rounded(18, 192)
    x = inputs(tokens, 192, dtype=torch.float16)
    whole = product(x, weight)
    x[1:] = float("nan")
    assert torch.equal(product(x, weight)[0], whole[0])


@needs_triton
@pytest.mark.parametrize("tile", [(16, 64), (64, 16)])
def test_the_shape_of_tiles_changes_nothing(tile, monkeypatch):
    sizes = dict(zip(("ROWS", "TOKENS"), tile, strict=True))
    monkeypatch.setattr(w4a16_triton, "_tile", lambda tokens: sizes)
    weight = rounded(67, 128)
    x = inputs(70, 128, dtype=torch.float16)
    assert_exact(product(x, weight), x, weight)


@needs_triton
@pytest.mark.parametrize("parts", [1, 2])
def test_the_kernel_writes_only_its_result(parts):
    weight = rounded(21, 128)
    x = inputs(19, 128, dtype=torch.float16)
    size = parts * 19 * 21
    memory = torch.full((size + 2000,), 7.0, device=DEVICE)
    output = memory[1000 : 1000 + size]
    tile = {"ROWS": 16, "TOKENS": 16, "STEP": 64}
    w4a16_triton.w4a16_kernel[2, 2, parts](
        x, 128, weight.codes, weight.scale, weight.zero, output, 19, 21, 128, 64, 128 // parts,
        **tile,
    )  # fmt: skip
    assert (memory[:1000] == 7).all() and (memory[1000 + size :] == 7).all()
    expected = x.float() @ weight.dequantize(torch.float32).T
    torch.testing.assert_close(output.view(parts, 19, 21).sum(0), expected, rtol=1e-4, atol=1e-4)


@pytest.fixture
def launches(monkeypatch):
    """The grid and the arguments of each launch; nothing is computed."""
    recorded = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *arguments, **sizes: recorded.append((grid, arguments, sizes))

    monkeypatch.setattr(w4a16_triton, "w4a16_kernel", Kernel())
    return recorded


@needs_triton
def test_without_tokens_nothing_is_launched(launches):
    """A GPU refuses an empty grid."""
    assert product(inputs(2, 0, 64), rounded(7, 64)).shape == (2, 0, 7)
    assert launches == []


@pytest.mark.parametrize(
    ("tokens", "rows", "tile", "grid", "part"),
    [
        (1, 65, (64, 16), (2, 1, 3), 1024),
        (16, 64, (64, 16), (1, 1, 3), 1024),
        (17, 129, (64, 32), (3, 1, 1), 2176),
        (300, 128, (64, 128), (2, 3, 1), 2176),
    ],
)
@needs_triton
def test_on_a_gpu_few_tokens_are_split_into_parts_and_many_into_tiles(
    tokens, rows, tile, grid, part, launches, monkeypatch
):
    monkeypatch.setattr(w4a16_triton, "INTERPRETED", False)
    product(inputs(tokens, 2176, dtype=torch.float16), rounded(rows, 2176, 128))
    [(launched, arguments, sizes)] = launches
    assert (launched, (sizes["ROWS"], sizes["TOKENS"])) == (grid, tile)
    assert arguments[-1] == part and sizes["STEP"] == 128
    assert part % sizes["STEP"] == 0


def test_steps_divide_groups():
    for group_size in range(16, 4097, 16):
        step = step_columns(group_size)
        assert group_size % step == 0 and step in (16, 32, 64, 128)
    assert w4a16_triton.PART_COLUMNS % w4a16_triton.LARGEST_STEP == 0


# ---------------------------------------------------------------- arguments and platforms


CODES = torch.zeros(3, 32, dtype=torch.uint8)
SCALE = torch.ones(3, 2).half()
ZERO = torch.zeros(3, 2, dtype=torch.uint8)
X = torch.zeros(2, 64).half()


def test_what_the_kernel_does_not_take_is_refused():
    right = {"x": X, "codes": CODES, "scale": SCALE, "zero": ZERO}
    refused = [
        ({"x": X.double()}, TypeError, "x has type torch.float64: .* or use F.linear with Group"),
        ({"x": X.int()}, TypeError, "x has type torch.int32"),
        ({"codes": CODES.int()}, TypeError, "uint8, float16 and uint8.* got torch.int32, torch.f"),
        ({"scale": SCALE.float()}, TypeError, "got torch.uint8, torch.float32, torch.uint8"),
        ({"zero": ZERO.half()}, TypeError, "got torch.uint8, torch.float16, torch.float16"),
        ({"x": X[:, :62]}, ValueError, r"x \(2, 62\), codes \(3, 32\), scale \(3, 2\), zero \(3, "),
        ({"x": X[0, 0]}, ValueError, r"x \(\), codes .*expected \(\.\.\., columns\)"),
        ({"codes": CODES[:2]}, ValueError, r"codes \(2, 32\)"),
        ({"zero": ZERO[:, :1]}, ValueError, r"zero \(3, 1\)"),
        ({"scale": SCALE[:, 0]}, ValueError, r"scale \(3,\)"),
        ({"scale": SCALE[:, :0], "zero": ZERO[:, :0]}, ValueError, r"scale \(3, 0\)"),
        ({"scale": SCALE.repeat(1, 4), "zero": ZERO.repeat(1, 4)}, ValueError,
         "8 groups of 64 columns: .* size is a multiple of 16; use F.linear"),
        ({"scale": torch.ones(3, 3).half(), "zero": ZERO[:, [0, 0, 1]]}, ValueError, "3 groups of"),
        ({"x": X.clone().requires_grad_()}, ValueError, "x requires a gradient.*QuantizedLinear"),
        ({"zero": ZERO.to("meta")}, ValueError, "x is on cpu, .* on cpu, cpu, meta: move"),
    ]  # fmt: skip
    assert not wrong_refusals(
        (partial(w4a16_matmul, **right | changes), error, says) for changes, error, says in refused
    )


def test_float32_is_taken_by_the_interpreter_only(monkeypatch):
    monkeypatch.setattr(w4a16_triton, "INTERPRETED", False)
    with pytest.raises(TypeError, match=r"x has type torch\.float32.*in the interpreter"):
        w4a16_matmul(X.float(), CODES, SCALE, ZERO)


def test_on_a_cpu_a_compiled_kernel_says_how_to_interpret_it(monkeypatch):
    monkeypatch.setattr("course_pkg.common.triton_runtime.INTERPRETED", False)
    with pytest.raises(ValueError, match=r"x is on cpu.*start Python with TRITON_INTERPRET=1"):
        w4a16_matmul(X, CODES, SCALE, ZERO)


def test_without_triton_weights_still_multiply_and_the_kernel_says_what_is_missing(monkeypatch):
    monkeypatch.setattr("course_pkg.common.triton_runtime.INSTALLED", False)
    monkeypatch.setattr("course_pkg.common.triton_runtime.INTERPRETED", True)
    with pytest.raises(ImportError, match="triton is not installed: it exists for Linux"):
        w4a16_matmul(X, CODES, SCALE, ZERO)
    monkeypatch.setattr(w4a16_triton, "INSTALLED", False)
    monkeypatch.setattr(w4a16_triton, "INTERPRETED", False)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    weight = rounded(3, 64)
    x = inputs(2, 64, dtype=torch.float16)
    dense = x.double() @ weight.dequantize(torch.float64).T
    assert (weight.matmul(x) - dense).norm() <= rounding(64, torch.float16) * dense.norm()


# ---------------------------------------------------------------- GroupedWeight and QuantizedLinear


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Tensors say that they are on a GPU; returns the arguments of the kernel's products."""
    calls = []

    def recorded(*arguments):
        calls.append(arguments)
        return w4a16_matmul(*arguments)

    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(w4a16_triton, "INSTALLED", True)
    monkeypatch.setattr(w4a16_triton, "INTERPRETED", False)
    monkeypatch.setattr(w4a16_triton, "w4a16_matmul", recorded)
    monkeypatch.setattr(w4a16_triton, "_tile", lambda tokens: {"ROWS": 16, "TOKENS": 16})
    return calls


def by_gptq_in_another_order():
    """A weight whose groups are not neighbors."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 200, generator=generator) * torch.rand(64, 1, generator=generator)
    weight = torch.randn(5, 64, generator=generator)
    return GPTQ(Grid(4, 16), act_order=True).quantize(weight, 2 * x @ x.T)


@pytest.mark.skipif(DEVICE != "cpu", reason="pretends to have a GPU")
@pytest.mark.parametrize(
    ("weight", "dtype"),
    [
        (rounded(5, 64, bits=3), torch.float16),
        (rounded(5, 64, bits=8), torch.float16),
        (rounded(5, 64, 8), torch.float16),
        (rounded(5, 100, None), torch.float16),
        (by_gptq_in_another_order(), torch.float16),
        (rounded(5, 64), torch.float32),
        (rounded(5, 64), torch.float64),
    ],
)
def test_what_the_kernel_does_not_take_is_dequantized(weight: GroupedWeight, dtype, on_a_gpu):
    x = inputs(2, weight.columns, dtype=dtype)
    precise = torch.promote_types(dtype, torch.float32)  # in which a CPU computes
    expected = (x.to(precise) @ weight.dequantize(precise).T).to(dtype)
    assert torch.equal(weight.matmul(x), expected)
    assert on_a_gpu == []


@pytest.mark.skipif(DEVICE != "cpu", reason="pretends to have a GPU")
def test_a_product_that_autograd_records_is_dequantized(on_a_gpu):
    weight = rounded(5, 64)
    x = inputs(2, 64, dtype=torch.float16).requires_grad_()
    weight.matmul(x).sum().backward()
    assert on_a_gpu == []
    torch.testing.assert_close(x.grad[0], weight.dequantize(torch.float32).sum(0).half())


@needs_triton
@pytest.mark.skipif(DEVICE != "cpu", reason="pretends to have a GPU")
def test_a_layer_runs_the_kernel_forward_and_sends_the_gradient_through_the_weight(on_a_gpu):
    weight = rounded(6, 64)
    layer = QuantizedLinear(weight, torch.nn.Parameter(torch.ones(6).half()))
    x = inputs(3, 64, dtype=torch.float16).requires_grad_()
    assert_exact(weight.matmul(x.detach()), x.detach(), weight)
    y = layer(x)
    assert len(on_a_gpu) == 2
    torch.testing.assert_close(y, x @ weight.dequantize(torch.float16).T + 1, rtol=0.01, atol=0.1)
    (2 * y).sum().backward()
    expected = torch.full((3, 6), 2.0).half() @ weight.dequantize(torch.float16)
    assert torch.equal(x.grad, expected)


def test_on_a_cpu_triton_is_not_even_imported():
    script = """
import sys, torch
from course_pkg.acceleration.quantization.grouped import Grid, round_to_nearest
weight = round_to_nearest(torch.ones(2, 16), Grid(4, 16))
print(weight.matmul(torch.ones(1, 16)).shape, "course_pkg.common.triton_runtime" in sys.modules)
"""
    assert python("-c", script) == ["torch.Size([1, 2]) False"]


@pytest.mark.skipif(not INTERPRETED, reason="compiled for the GPU here")
def test_in_the_interpreter_weights_are_not_multiplied_by_the_kernel(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    assert not runs_kernel(X, 64)


# ---------------------------------------------------------------- on a GPU


@needs_triton
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "tokens", "group_size"),
    [
        (torch.float16, 1, 32),
        (torch.bfloat16, 7, 64),
        (torch.float16, 16, 128),
        (torch.bfloat16, 17, None),
        (torch.float16, 64, None),
        (torch.bfloat16, 64, 32),
        (torch.float16, 1025, 64),
        (torch.bfloat16, 1025, 128),
    ],
)
def test_real_sizes_are_as_exact_as_torch(dtype, tokens, group_size):
    weight = rounded(1031, 4096, group_size)
    x = inputs(tokens, 4096, dtype=dtype)
    assert runs_kernel(x, group_size or 4096)
    exact = x.double() @ weight.dequantize(torch.float64).T
    theirs = (x @ weight.dequantize(dtype).T).double()
    assert (weight.matmul(x).double() - exact).norm() <= 1.1 * (theirs - exact).norm()


@needs_triton
@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [16, 256])
def test_the_weight_is_never_dequantized_in_memory(tokens):
    weight = rounded(4096, 4096, 128)
    x = inputs(tokens, 4096, dtype=torch.bfloat16)
    for _ in range(2):  # the first run compiles
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        weight.matmul(x)
        used = torch.cuda.max_memory_allocated() - before
    assert used < 2**22  # sums of 4 parts, or the result; the dequantized weight has 32 MiB


@needs_triton
@pytest.mark.gpu
def test_a_product_repeats_itself_to_the_bit():
    weight = rounded(4096, 4096, 128)
    x = inputs(4, 4096, dtype=torch.float16)
    first = weight.matmul(x)
    assert all(torch.equal(weight.matmul(x), first) for _ in range(20))
