"""torch's kernels for a few tokens: equal to the dequantized product, up to bf16's rounding."""

import pytest
import torch

from course_pkg.acceleration.quantization import cpu_kernels
from course_pkg.acceleration.quantization.gguf_blocks import write_gguf
from course_pkg.acceleration.quantization.grouped import Grid, round_to_nearest
from course_pkg.acceleration.quantization.int8 import int8_weight
from tests.acceleration.quantization.examples import normal

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
