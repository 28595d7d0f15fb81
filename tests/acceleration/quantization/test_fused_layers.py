"""Fused projections: the same numbers from fewer products."""

import copy

import pytest
import torch
from torch import nn

from course_pkg.acceleration.quantization.fused_layers import (
    FusedAttention,
    FusedSwiGLU,
    PairedRMSNorm,
    below_each_other,
    fuse,
)
from course_pkg.acceleration.quantization.quantized_decoder import FORMATS, quantize_decoder
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.adapters.injection import adapter_layers, inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.lm.decoder import Decoder, RMSNorm
from course_pkg.lm.load import load

IDS = torch.tensor([[5, 6, 7, 8, 9], [3, 2, 1, 4, 4]])


def decoder(**changes):
    """A small random decoder, with weights of norms other than 1."""
    model = Decoder.from_transformers(load("tiny").model)
    if changes:
        config = copy.copy(model.config)
        for name, value in changes.items():
            object.__setattr__(config, name, value)
        model = Decoder(config)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize("changes", [{}, {"qkv_bias": True, "mlp_bias": True}, {"tied": False}])
def test_a_fused_decoder_computes_the_same(changes):
    separate = decoder(**changes)
    exact = separate(IDS)
    torch.testing.assert_close(fuse(separate)(IDS), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weights", FORMATS)
def test_fusing_does_not_change_what_is_stored(weights):
    whole = decoder()
    separate = quantize_decoder(whole, weights, torch.float32)
    fused = quantize_decoder(whole, weights, torch.float32, fused=True)
    torch.testing.assert_close(fused(IDS), separate(IDS), rtol=1e-4, atol=1e-4)
    parts = [separate.layers[0].mlp.gate_proj, separate.layers[0].mlp.up_proj]
    codes = torch.cat([part.weight for part in parts])
    assert torch.equal(fused.layers[0].mlp.gate_up_proj.weight, codes)
    products = [m for m in fused.modules() if isinstance(m, QuantizedLinear)]
    assert len(products) == 4 * whole.config.layers + 1
    assert hasattr(whole.layers[0].mlp, "up_proj")  # the given decoder is as before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_a_norm_of_x_and_its_negative_is_rmsnorm(dtype, size):
    generator = torch.Generator().manual_seed(0)
    norm = RMSNorm(96, eps=1e-5)
    norm.weight.data = torch.randn(96, generator=generator)
    x = (size * torch.randn(2, 7, 96, generator=generator)).to(dtype)
    exact = norm.double()(x.double())
    result = PairedRMSNorm(norm.to(dtype))(x).double()
    one_rounding = torch.finfo(dtype).eps
    assert ((result - exact).abs() <= 4 * one_rounding * exact.abs() + one_rounding).all()


@pytest.mark.parametrize("target", ["k_proj", "up_proj"])
def test_layers_with_an_adapter_stay_separate(target):
    """Its weight alone would be fused, and the adapter lost without a word."""
    whole = decoder()
    inject(whole, LoRAConfig(rank=2, target_modules=(target,)))
    for layer in adapter_layers(whole).values():
        nn.init.normal_(layer.lora_B["default"], generator=torch.Generator().manual_seed(0))
    separate = quantize_decoder(whole, "int8", torch.float32)
    fused = quantize_decoder(whole, "int8", torch.float32, fused=True)
    torch.testing.assert_close(fused(IDS), separate(IDS), rtol=1e-4, atol=1e-4)
    assert len(adapter_layers(fused)) == whole.config.layers
    others = {"k_proj": FusedSwiGLU, "up_proj": FusedAttention}[target]
    assert sum(isinstance(m, others) for m in fused.modules()) == whole.config.layers


def test_layers_that_read_different_inputs_are_refused():
    with pytest.raises(ValueError, match=r"read \[3, 4\] features, 2 of 2 with a bias, can't be"):
        below_each_other(nn.Linear(3, 2), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="1 of 2 with a bias"):
        below_each_other(nn.Linear(3, 2), nn.Linear(3, 2, bias=False))
