"""DoRA by hand, and bases that LoRA doesn't need to read."""

import math

import pytest
import torch
from torch import nn

from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.adapters.dora import DoRAConfig, DoRALinear
from course_pkg.adapters.injection import adapter_layers, inject
from course_pkg.adapters.lora import LoRAConfig, LoRALinear
from course_pkg.adapters.qlora import Linear4bit


def by_hand():
    """W + BA = [[4, 4], [0, 2]], whose rows have the norms √32 and 2."""
    base = nn.Linear(2, 2)
    layer = DoRALinear(base, DoRAConfig(rank=1, alpha=1))
    with torch.no_grad():
        base.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
        base.bias.copy_(torch.tensor([1.0, -1.0]))
        layer.lora_A["default"].copy_(torch.tensor([[1.0, 0.0]]))
        layer.lora_B["default"].copy_(torch.tensor([[1.0], [0.0]]))
        layer.lora_magnitude_vector["default"].copy_(torch.tensor([10.0, 3.0]))
    return layer


def test_the_output_and_the_merged_weight_by_hand_with_the_bias_outside():
    # 10 · (4 + 4)/√32 + 1 and 3 · 2/2 - 1.
    layer = by_hand()
    out = layer(torch.tensor([1.0, 1.0]))
    assert out.tolist() == pytest.approx([80 / math.sqrt(32) + 1, 2.0])
    layer.merge()
    assert layer.weight.norm(dim=1).tolist() == pytest.approx([10.0, 3.0])
    assert layer.base.bias.tolist() == [1.0, -1.0]


def test_a_zero_row_stays_zero_and_gives_no_nan():
    base = nn.Linear(4, 3)
    with torch.no_grad():
        base.weight[1] = 0.0
    layer = DoRALinear(base, DoRAConfig(rank=2))
    out = layer(torch.ones(5, 4))
    assert torch.equal(out[:, 1], base.bias[1].expand(5))
    out.sum().backward()
    weights = layer.weights_of("default").values()
    assert all(torch.isfinite(weight.grad).all() for weight in weights)
    assert torch.isfinite(layer.merged_weight()).all()


def test_a_quantized_base_is_read_through_its_dequantized_weight():
    torch.manual_seed(0)
    quantized = Linear4bit(nn.Linear(64, 6))
    plain = nn.Linear(64, 6)
    with torch.no_grad():
        plain.weight.copy_(quantized.dequantized_weight())
        plain.bias.copy_(quantized.bias)
    layers = [DoRALinear(base, DoRAConfig(rank=2)) for base in (quantized, plain)]
    with torch.no_grad():
        for layer in layers:
            layer.lora_B["default"].fill_(0.3)
            layer.lora_magnitude_vector["default"].mul_(1.5)
    x = torch.randn(5, 64, requires_grad=True)
    outputs = [layer(x) for layer in layers]
    torch.testing.assert_close(*outputs)
    outputs[0].sum().backward()
    assert x.grad is not None and layers[0].lora_magnitude_vector["default"].grad is not None
    with pytest.raises(ValueError, match="cannot merge into a quantized weight"):
        layers[0].merge()


def test_a_quantized_weight_that_cannot_be_read_is_refused_before_any_change(monkeypatch):
    model = nn.Sequential(nn.Linear(64, 64), Linear4bit(nn.Linear(64, 4)))
    monkeypatch.delattr(QuantizedLinear, "dequantized_weight")
    inject(nn.Sequential(model[1]), LoRAConfig(rank=1))  # LoRA doesn't read it
    with pytest.raises(TypeError, match="whose weight it can read"):
        inject(model, DoRAConfig(rank=1))
    assert not adapter_layers(model)


def test_a_layer_takes_the_config_of_its_own_method():
    with pytest.raises(TypeError, match="has DoRA, which takes a DoRAConfig, got LoRAConfig"):
        DoRALinear(nn.Linear(2, 2), LoRAConfig(rank=1))
    with pytest.raises(TypeError, match="has LoRA, which takes a LoRAConfig, got DoRAConfig"):
        LoRALinear(nn.Linear(2, 2), DoRAConfig(rank=1))
