"""Kernels that torch chooses by the CPU's instructions are exact for tiny sizes in any layout."""

import itertools
import re
from pathlib import Path

import pytest
import torch

import course_pkg
from course_pkg.acceleration.quantization import cpu_kernels
from course_pkg.acceleration.quantization.int8_matmul import (
    Int8Kernel,
    affine_matmul,
    float_rows_matmul,
    int8_matmul,
)
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
        cases += [(each, each) for each in inputs.keys() & weights.keys()]
        scales = SCALES if name in ("int8_product", "int4_product") else {"none": None}
        for (x, codes), scale in itertools.product(cases, scales):
            numbers = inputs[x], weights[codes]
            expected = numbers[0].double() @ numbers[1].double().T
            if scale != "none":
                expected /= 2
                numbers += (scales[scale][:n, : k // 32],)
            with filled_memory():
                found = kernel(*numbers)
            if not torch.equal(found.double(), expected.to(found.dtype).double()):
                wrong.append((dtype, (tokens, k, n), x, codes, scale))
    assert wrong == []


def test_torchs_internal_kernels_are_called_through_one_door():
    """Elsewhere, no `torch._kernel(...)` or `torch.ops.library.kernel(...)` is called."""
    root = Path(course_pkg.__file__).parent
    called = []
    for path in sorted(root.rglob("*.py")):
        found = re.findall(r"\b(torch\.(?:_|ops\.)[\w.]+)\(", path.read_text())
        called += [f"{path.relative_to(root)}: {name}" for name in found]
    assert called == [
        "quantization/int8_matmul.py: torch._int_mm",  # in `_int_mm`, which goes through the door
        "quantization/int8_matmul.py: torch.ops.quantized.linear_prepack",  # of what has come so
    ]
