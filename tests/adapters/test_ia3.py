"""IA³ by hand: what it scales, how it merges with a bias, and which modules it accepts."""

import copy

import pytest
import torch
from torch import nn

from course_pkg.adapters.ia3 import IA3Config, IA3Linear
from course_pkg.adapters.injection import adapter_layers, inject
from tests.tables import each_row

BOTH = IA3Config(target_modules=["v_proj", "down_proj"])


@each_row(
    ("name", "shape", "output", "weight", "bias"),
    [
        # x = [1, 1]: W x + b = [4, 6]; times [10, 100].
        ("v_proj", (2, 1), [40.0, 600.0], [[10.0, 20.0], [300.0, 400.0]], [10.0, -100.0]),
        # W [10, 100] + b = [210 + 1, 430 - 1].
        ("down_proj", (1, 2), [211.0, 429.0], [[10.0, 200.0], [30.0, 400.0]], [1.0, -1.0]),
    ],
)
def test_outputs_and_merged_weights_by_hand(name, shape, output, weight, bias):
    layer = IA3Linear(nn.Linear(2, 2), BOTH, module_name=name)
    with torch.no_grad():
        layer.base.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        layer.base.bias.copy_(torch.tensor([1.0, -1.0]))
        layer.ia3_l["default"].copy_(torch.tensor([10.0, 100.0]).reshape(shape))
    assert tuple(layer.ia3_l["default"].shape) == shape
    assert layer(torch.ones(2)).tolist() == output
    before = copy.deepcopy(layer.state_dict())
    for _ in range(2):
        layer.merge()
        assert layer.weight.tolist() == weight and layer.bias.tolist() == bias
        assert layer(torch.ones(2)).tolist() == output
    saved = layer.state_dict()
    assert saved.keys() == before.keys()
    assert all(torch.equal(saved[key], before[key]) for key in before)
    layer.unmerge()
    layer.unmerge()
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    assert layer(torch.ones(2)).tolist() == output


def test_a_bias_that_overflows_is_refused_and_nothing_changes():
    layer = IA3Linear(nn.Linear(2, 2).half(), IA3Config(), module_name="v_proj")
    with torch.no_grad():
        layer.base.bias.fill_(60000.0)
        layer.ia3_l["default"].fill_(2.0)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(ValueError, match="gives a bias that is not finite"):
        layer.merge()
    assert not layer.merged
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    assert torch.isinf(layer(torch.zeros(2).half())).all()


def test_the_bias_is_16_bit_after_a_merge_into_a_16_bit_base():
    layer = IA3Linear(nn.Linear(2, 2).bfloat16(), IA3Config(), module_name="v_proj")
    layer.merge()
    assert layer.bias.dtype is layer.weight.dtype is torch.bfloat16


@each_row(
    ("settings", "error", "says"),
    [
        ({"target_modules": "all-linear"}, ValueError, 'takes no target_modules="all-linear"'),
        (
            {"target_modules": ["v_proj"], "feedforward_modules": ["fc"]},
            ValueError,
            r"must be some of target_modules \['v_proj'\], got \['fc'\]",
        ),
        ({"feedforward_modules": "("}, ValueError, "is not a regex"),
        ({"feedforward_modules": None}, TypeError, "must be a string or strings, got None"),
    ],
)
def test_an_invalid_setting_says_what_is_expected(settings, error, says):
    with pytest.raises(error, match=says):
        IA3Config(**settings)


@each_row("inner", [r".*\.fc", ["fc"]])
def test_feedforward_modules_that_match_no_target_are_refused(inner):
    model = nn.ModuleDict({"v_proj": nn.Linear(2, 2), "fc": nn.Linear(2, 2)})
    config = IA3Config(target_modules="v_.*", feedforward_modules=inner)
    with pytest.raises(ValueError, match=r"feedforward_modules .* matches none of the targets"):
        inject(model, config)
    assert not adapter_layers(model)


def test_names_are_matched_by_their_ends_as_in_peft():
    config = IA3Config(target_modules=["h.0.mlp.fc", "mlp.fc"], feedforward_modules=["mlp.fc"])
    assert config.scales_input("h.0.mlp.fc") and config.scales_input("xmlp.fc")
    assert not config.scales_input("mlp.fc.0")
    regex = IA3Config(feedforward_modules=r".*\.fc")
    assert regex.scales_input("mlp.fc") and not regex.scales_input("mlp.fc2")
