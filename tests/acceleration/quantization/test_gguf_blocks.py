"""GGUF's blocks as storages of a layer, their sizes, and what is refused."""

import pytest
import torch
import torch.nn.functional as F

from course_pkg.acceleration.quantization.gguf_blocks import (
    FORMATS,
    fitting,
    read_gguf,
    require_columns,
    write_gguf,
)
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from tests.acceleration.quantization.examples import normal
from tests.refusals import require_refusals

WRITABLE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def test_bits_per_weight():
    assert FORMATS["Q6_K"].bits == 6.5625
    for name in WRITABLE:
        assert write_gguf(normal(4, 64), name).effective_bits == FORMATS[name].bits


@pytest.mark.parametrize("name", FORMATS)
def test_a_layer_computes_with_the_numbers_read(name):
    if name in WRITABLE:
        weight = write_gguf(normal(6, 256), name)
    else:
        data = torch.randint(0, 60, (6, FORMATS[name].nbytes), dtype=torch.uint8)
        weight = read_gguf(data, name)
    assert weight.shape == (6, 256) and weight.describe() == f"GGUF {name}"
    layer = QuantizedLinear(weight)
    x = normal(2, 3, 256, seed=1)
    assert torch.equal(layer(x), F.linear(x, weight.dequantize()))
    assert weight.dequantize(torch.bfloat16).dtype == torch.bfloat16
    assert (
        sum(tensor.nbytes for tensor in weight.tensors().values())
        == 6 * 256 * FORMATS[name].bits / 8
    )


def test_k_blocks_fall_back_where_256_does_not_divide_a_row():
    """SmolLM2 has rows of 576 columns, but for down_proj's 1536."""
    assert [fitting(name, 1536) for name in FORMATS] == list(FORMATS)
    assert [fitting(name, 576) for name in ("Q4_K", "Q5_K", "Q6_K")] == ["Q5_0", "Q5_1", "Q8_0"]
    assert {fitting(name, 100) for name in FORMATS} == {"F16"}
    for name in FORMATS:
        assert require_columns(name, 512) == 512
    message = "blocks of Q6_K, 256 weights, do not divide 576 columns; llama.cpp uses Q8_0 here"
    for call in (lambda: require_columns("Q6_K", 576), lambda: write_gguf(normal(1, 576), "Q6_K")):
        with pytest.raises(ValueError, match=message):
            call()


def test_bad_arguments_are_refused():
    require_refusals(
        (normal(2, 40), "Q4_0", "ValueError: .* do not divide 40 columns; llama.cpp"),
        (normal(2, 256), "Q4_K", "ValueError: Q4_K can be read only; these .*8_0"),
        (normal(2, 32), "Q9_0", "ValueError: name must be one of Q4_0, Q4_1"),
        (normal(32), "Q4_0", "ValueError: expected a matrix of floats"),
        (normal(2, 32) / 0, "Q4_0", "ValueError: .*NaN or infinite"),
        (normal(2, 32) * 1e9, "Q8_0", "ValueError: .*fp16 has up to 65,504"),
        (normal(2, 32) - 1e5, "Q4_1", "ValueError: a block needs the number 100"),
        of=write_gguf,
    )
    require_refusals(
        (normal(2, 18), "Q4_0", "TypeError: expected bytes, uint8 .* got torch.float32"),
        (torch.zeros(18).byte(), "Q4_0", r"TypeError: expected bytes, .*\(18,\)"),
        (torch.zeros(1, 20).byte(), "Q4_0", "ValueError: a row of 20 bytes is n"),
        (torch.zeros(1, 0).byte(), "Q4_0", "ValueError: a row of 0 bytes"),
        (torch.zeros(1, 18).byte(), "q4_0", "ValueError: name must be one of"),
        of=read_gguf,
        errors=(TypeError, ValueError),
    )
    require_refusals((require_columns, "Q2_K", 256, "name must be one of"))
