"""torch's kernels that the CPU's instructions choose: tiny sizes, any layout, a few tokens."""

import itertools
import re
from pathlib import Path

import pytest
import torch

import course_pkg
from course_pkg.acceleration.quantization import cpu_kernels
from course_pkg.acceleration.quantization.gguf_blocks import write_gguf
from course_pkg.acceleration.quantization.grouped import Grid, round_to_nearest
from course_pkg.acceleration.quantization.int8 import int8_weight
from course_pkg.acceleration.quantization.int8_matmul import (
    Int8Kernel,
    affine_matmul,
    float_rows_matmul,
    int8_matmul,
)
from tests.acceleration.quantization.examples import normal
from tests.layouts import filled_memory, layouts

TINY = (1, 2, 3)
SCALES = {  # of 64 rows and columns at most, all 1/2
    "new": torch.full((64, 2), 0.5, dtype=torch.bfloat16),
    "transposed": torch.full((2, 64), 0.5, dtype=torch.bfloat16).T,
    "expanded": torch.full((1, 1), 0.5, dtype=torch.bfloat16).expand(64, 2),
}


def int4_product(x, codes, scale):
    weight = cpu_kernels.Int4Weight(codes + 8, scale, -8 * scale)  # w = scale · code
    return weight.product(x)


def int8_product(x, codes, scale):
    return cpu_kernels.int8_product(x, codes, scale[:, 0])


# kernel; sizes of k and n; the dtypes of x; the largest number of x and that of the codes. Sums of
# products fit into bf16, which holds integers up to 256, halves up to 128.
PRODUCTS = {
    "int8_matmul": (int8_matmul, TINY, [torch.int8], 127, 127),
    "affine_matmul": (lambda a, b: affine_matmul(a, 0, b), TINY, [torch.int8], 127, 127),
    "Int8Kernel": (lambda x, b: Int8Kernel()(x, b, 7), TINY, [torch.float32], 63, 127),
    "float_rows_matmul": (
        float_rows_matmul,
        TINY,
        [torch.float32, torch.bfloat16, torch.float16],
        5,
        9,
    ),
    "int8_product": (int8_product, (32, 64), [torch.bfloat16], 1, 1),
    "int4_product": (int4_product, (32, 64), [torch.bfloat16], 1, 7),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_exact_for_tiny_sizes_in_any_layout(name):
    kernel, sizes, dtypes, largest_x, largest_code = PRODUCTS[name]
    generator = torch.Generator().manual_seed(0)

    def integers(rows, columns, largest):
        return torch.randint(-largest, largest + 1, (rows, columns), generator=generator)

    wrong = []
    for tokens, k, n, dtype in itertools.product(TINY, sizes, sizes, dtypes):
        inputs = layouts(integers(tokens, k, largest_x).to(dtype))
        weights = layouts(integers(n, k, largest_code).char())
        cases = [(x, "new") for x in inputs] + [("new", codes) for codes in weights]
        cases += [(layout, layout) for layout in inputs.keys() & weights.keys()]
        scales = SCALES if name in ("int8_product", "int4_product") else {"none": None}
        for (x, codes), scale in itertools.product(cases, scales):
            numbers = inputs[x], weights[codes]
            expected = numbers[0].double() @ numbers[1].double().T
            if scale != "none":
                expected /= 2
                numbers += (scales[scale][:n, : k // 32],)
            with filled_memory():
                product = kernel(*numbers)
            if not torch.equal(product.double(), expected.to(product.dtype).double()):
                wrong.append((dtype, (tokens, k, n), x, codes, scale))
    assert wrong == []


def test_torchs_internal_kernels_are_called_through_one_door():
    """Elsewhere, no `torch._kernel(...)` or `torch.ops.library.kernel(...)` is called."""
    root = Path(course_pkg.__file__).parent
    called = []
    for path in sorted(root.rglob("*.py")):
        names = re.findall(r"\b(torch\.(?:_|ops\.)[\w.]+)\(", path.read_text())
        called += [f"{path.relative_to(root)}: {name}" for name in names]
    assert called == [
        "acceleration/quantization/int8_matmul.py: torch._int_mm",  # goes through the door
        "acceleration/quantization/int8_matmul.py: torch.ops.quantized.linear_prepack",  # as well
    ]


INT8 = [((32, 32), 12), ((96, 64), 1), ((160, 256), 5), ((64, 288), 2), ((4128, 96), 12)]
GROUPED = [  # shape, group, symmetric, tokens
    ((32, 32), 32, False, 64),
    ((160, 256), 32, True, 3),
    ((64, 288), 32, False, 1),
    ((4128, 96), 32, True, 64),
    ((64, 192), 64, False, 3),
    ((64, 256), 128, True, 1),
]
BLOCKS = [
    ("Q4_0", (32, 32), 64),
    ("Q4_0", (64, 288), 1),
    ("Q4_1", (160, 256), 1),
    ("Q4_1", (96, 64), 64),
]
SHIFT = 0.5  # so that zero points differ from the middle


def far(product, weight, x):
    """The largest error of a product, in units of |x| |Ŵ|ᵀ, which bounds its terms."""
    exact = x.double() @ weight.dequantize(torch.float64).T
    bound = x.double().abs() @ weight.dequantize(torch.float64).abs().T
    return ((product.double() - exact).abs() / bound).max().item()


def guarded(dequantize):
    """Dequantizing to fp64, as the test does, is allowed; to x's type, as the slow path, is not."""

    def only_exactly(self, dtype=None):
        assert dtype == torch.float64, "the kernel was not used"
        return dequantize(self, dtype)

    return only_exactly


@pytest.mark.parametrize(
    ("weight", "tokens"),
    [
        *((int8_weight(normal(*shape)), tokens) for shape, tokens in INT8),
        *(
            (round_to_nearest(normal(*shape) + SHIFT, Grid(4, group, symmetric)), tokens)
            for shape, group, symmetric, tokens in GROUPED
        ),
        *((write_gguf(normal(*shape) + SHIFT, name), tokens) for name, shape, tokens in BLOCKS),
    ],
)
def test_a_product_is_that_of_the_dequantized_weight(weight, tokens, monkeypatch):
    monkeypatch.setattr("course_pkg.acceleration.quantization.int8.float_rows_matmul", None)
    monkeypatch.setattr(type(weight), "dequantize", guarded(type(weight).dequantize))
    x = normal(tokens, weight.shape[1], seed=1).bfloat16()
    assert far(weight.matmul(x), weight, x) < 0.01


@pytest.mark.parametrize(
    "weight",
    [
        *(write_gguf(normal(64, 192), name) for name in ("Q5_0", "Q5_1", "Q8_0")),
        *(round_to_nearest(normal(64, 192), Grid(bits, 32)) for bits in (3, 8)),
        *(round_to_nearest(normal(64, 192), Grid(4, group)) for group in (16, 96, None)),
    ],
)
def test_other_weights_are_dequantized(weight):
    x = normal(2, 192, seed=1).bfloat16()
    exact = x.float() @ weight.dequantize(torch.float32).T
    assert torch.equal(weight.matmul(x), exact.bfloat16())


def test_other_inputs_are_not_taken():
    inputs = [
        (torch.zeros(65, 64).bfloat16(), "more than 64 tokens"),
        (torch.zeros(1, 64), "fp32"),
        (torch.zeros(1, 64).half(), "fp16"),
        (torch.zeros(0, 64).bfloat16(), "no token"),
        (torch.zeros(1, 64).bfloat16().requires_grad_(), "a gradient is needed"),
        (torch.zeros(1, 64, device="meta").bfloat16(), "another device"),
    ]
    assert [why for x, why in inputs if cpu_kernels.takes(x, bits=4)] == []


def test_8_bits_take_fewer_tokens_than_4():
    twelve = torch.zeros(1, 12, 64).bfloat16()
    sixty_four = torch.zeros(4, 16, 64).bfloat16()
    thirteen = torch.zeros(13, 64).bfloat16()
    assert cpu_kernels.takes(twelve, bits=8) and not cpu_kernels.takes(thirteen, bits=8)
    assert cpu_kernels.takes(twelve, bits=4) and cpu_kernels.takes(sixty_four, bits=4)


def test_shapes_in_which_a_kernel_reads_other_memory_are_refused():
    shapes = [(33, 64), (64, 48), (16, 64), (0, 64)]
    assert [shape for shape in shapes if cpu_kernels.fits(torch.Size(shape))] == []


def test_leading_dimensions_stay():
    x = normal(2, 1, 2, 64, seed=1).bfloat16()
    for weight in (int8_weight(normal(96, 64)), round_to_nearest(normal(96, 64), Grid(4, 32))):
        assert weight.matmul(x).shape == (2, 1, 2, 96)
        assert torch.equal(weight.matmul(x)[1, 0], weight.matmul(x[1, 0]))
