"""Scales, codes and products of int8 equal those of torchao.

Symmetric scales differ by default: torchao divides the largest magnitude by 127.5, and the code of
a positive extreme is clamped from 127.5 to 127; ours divides by 127. With codes −127 … 127, or with
the same scale, the two are equal. (torchao 0.18 fails for a matrix of one column.)
"""

import pytest
import torch
import torch.nn.functional as F

from course_pkg.quantization.int8 import (
    Activations,
    affine_scale,
    dequantize,
    int8_weight,
    quantize,
    symmetric_scale,
)
from course_pkg.quantization.int8_matmul import int8_matmul
from tests.parity.small_models import error
from tests.tolerance import rounding

torchao = pytest.importorskip("torchao", reason="torchao is not installed")

from torchao.quantization import (  # noqa: E402  # noqa: E402
    Int8DynamicActivationInt8WeightConfig,
    Int8Tensor,
    Int8WeightOnlyConfig,
    PerRow,
    PerTensor,
    quantize_,
)
from torchao.quantization import quant_primitives as primitives  # noqa: E402
from torchao.quantization.quantize_.workflows import QuantizeTensorToInt8Kwargs  # noqa: E402

MAPPINGS = primitives.MappingType
pytestmark = pytest.mark.usefixtures("exact_int_mm")


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


INPUTS = {
    "random": normal(9, 65),
    "shifted": normal(4, 33) + 3,
    "outliers": normal(16, 64) ** 5,
    "negative": -normal(4, 32).abs(),
    "two columns": normal(5, 2),
}


def theirs(x, mapping, low, high, per):
    """torchao's scale, zero point and codes."""
    block = (1, x.shape[1]) if per == "row" else tuple(x.shape)
    scale, zero = primitives.choose_qparams_affine(
        x, mapping, block, torch.int8, low, high, scale_dtype=torch.float32, keepdim=True
    )
    codes = primitives.quantize_affine(x, block, scale, zero, torch.int8, low, high)
    return scale, zero, codes


@pytest.mark.parametrize("bits", [8, 7, 4])
@pytest.mark.parametrize("per", ["row", "tensor"])
@pytest.mark.parametrize("name", INPUTS)
def test_symmetric_and_affine_scales_and_codes_are_equal(name, per, bits):
    x = INPUTS[name]
    largest = 2 ** (bits - 1) - 1
    scale, _, codes = theirs(x, MAPPINGS.SYMMETRIC, -largest, largest, per)
    ours = symmetric_scale(x, per, bits)
    assert torch.equal(ours.view_as(scale), scale)
    assert torch.equal(quantize(x, ours, bits=bits), codes)
    scale, zero, codes = theirs(x, MAPPINGS.ASYMMETRIC, -largest - 1, largest, per)
    ours, our_zero = affine_scale(x, per, bits)
    assert torch.equal(ours.view_as(scale), scale) and torch.equal(our_zero.view_as(zero), zero)
    assert torch.equal(quantize(x, ours, our_zero, bits), codes)


def their_layer(weight, config):
    linear = torch.nn.Linear(*reversed(weight.shape), bias=False)
    linear.weight.data.copy_(weight)
    quantize_(linear, config)
    return linear.requires_grad_(False)


def test_a_weight_with_our_scale_is_equal_and_so_is_its_product():
    weight = normal(24, 65)
    x = normal(2, 3, 65, seed=1)
    ours = int8_weight(weight)
    tensor = Int8Tensor.from_hp(weight, PerRow(), scale=ours.scale)
    assert torch.equal(tensor.qdata, ours.codes)
    assert torch.equal(tensor.dequantize(), ours.dequantize())
    # the same products in another order of summation
    assert error(F.linear(x, tensor), ours.matmul(x)) <= rounding(65)


def test_the_weight_only_layer_is_that_of_our_functions_with_its_scale():
    weight = normal(24, 65)
    x = normal(4, 65, seed=1)
    layer = their_layer(weight, Int8WeightOnlyConfig())
    scale = layer.weight.scale
    assert torch.allclose(scale, symmetric_scale(weight) * 127 / 127.5, rtol=1e-6)
    codes = quantize(weight, scale, torch.zeros(1))
    assert torch.equal(layer.weight.qdata, codes)
    assert error(layer(x), x @ dequantize(codes, scale).T) <= rounding(65)
    dense = x @ weight.T
    assert 0.5 < error(layer(x), dense) / error(int8_weight(weight).matmul(x), dense) < 2


def test_the_dynamic_layer_is_that_of_our_functions_with_its_scales_bit_for_bit():
    weight = normal(24, 64)
    x = normal(5, 64, seed=1)
    layer = their_layer(weight, Int8DynamicActivationInt8WeightConfig())
    scale = x.abs().amax(1, keepdim=True) / 127.5
    codes = quantize(x, scale, torch.zeros(1))
    product = int8_matmul(codes, layer.weight.qdata).float()
    assert torch.equal(layer(x), product * scale * layer.weight.scale.flatten())


@pytest.mark.parametrize("affine", [False, True], ids=["symmetric", "affine"])
def test_static_and_dynamic_products_with_our_weight_are_equal(affine):
    weight = normal(24, 64)
    x = normal(5, 64, seed=1) + 0.5
    mapping = MAPPINGS.ASYMMETRIC if affine else MAPPINGS.SYMMETRIC
    static = int8_weight(weight, Activations("tensor", affine), [x])
    options = {"scale": static.scale}
    zero = static.static_zero.view(1, 1).to(torch.int8)
    tensor = Int8Tensor.from_hp(
        weight,
        PerRow(),
        act_quant_scale=static.static_scale.view(1, 1),
        act_quant_zero_point=zero,
        act_quant_kwargs=QuantizeTensorToInt8Kwargs(PerTensor(), mapping),
        **options,
    )
    result = F.linear(x, tensor)
    if affine:  # they subtract the correction after the rescaling
        assert error(static.matmul(x), result) <= rounding(64)
        kwargs = QuantizeTensorToInt8Kwargs(PerRow(), mapping)
        tensor = Int8Tensor.from_hp(weight, PerRow(), act_quant_kwargs=kwargs, **options)
        dynamic = int8_weight(weight, Activations(affine=True))
        assert error(dynamic.matmul(x), F.linear(x, tensor)) <= rounding(64)
    else:
        assert torch.equal(static.matmul(x), result)
