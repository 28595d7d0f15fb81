"""LoRALinear, y = W x + b + scaling · B(A(dropout(x)))."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from course_pkg.adapters.lora import LoRAConfig, LoRALinear
from tests.parity.small_models import error
from tests.tables import each_row


def make_layer(inner=6, outer=5, *, dtype=torch.float32, names=("default",), **settings):
    """A LoRALinear whose B is not zero, so that every adapter has an effect."""
    generator = torch.Generator().manual_seed(0)
    base = nn.Linear(inner, outer)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    layer = LoRALinear(base.to(dtype))
    for name in names:
        layer.add_adapter(name, LoRAConfig(**{"rank": 2} | settings), generator=generator)
        with torch.no_grad():
            B = layer.lora_B[name]
            B.copy_(torch.randn(B.shape, generator=generator))
    return layer


def test_a_layer_worked_by_hand():
    # W = [[1, 0], [0, 1]], b = (10, 20), A = [1, 1], B = (1, 2)ᵀ, alpha = 6, rank = 1, x = (3, 4).
    # W x + b = (13, 24); A x = 7; B·7 = (7, 14); times 6/1 = (42, 84); the sum is (55, 108).
    layer = LoRALinear(nn.Linear(2, 2), LoRAConfig(rank=1, alpha=6))
    with torch.no_grad():
        layer.base.weight.copy_(torch.eye(2))
        layer.base.bias.copy_(torch.tensor([10.0, 20.0]))
        layer.lora_A["default"].fill_(1.0)
        layer.lora_B["default"].copy_(torch.tensor([[1.0], [2.0]]))
    assert layer(torch.tensor([3.0, 4.0])).tolist() == [55.0, 108.0]
    assert layer.delta_weight("default").tolist() == [[6.0, 6.0], [12.0, 12.0]]


def test_a_new_adapter_changes_no_output_and_has_the_usual_initialization():
    base = nn.Linear(1000, 300)
    x = torch.randn(4, 1000)
    layer = LoRALinear(base, LoRAConfig(rank=16))
    assert torch.equal(layer(x), base(x))
    A = layer.lora_A["default"]
    B = layer.lora_B["default"]
    assert A.shape == (16, 1000) and B.shape == (300, 16) and not B.any()
    # Kaiming-uniform with a = √5 has the bound √(6 / ((1 + 5)·fan_in)) = 1/√fan_in.
    bound = 1 / math.sqrt(1000)
    assert bound * 0.99 < A.abs().max() <= bound
    assert A.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)


def test_the_generator_determines_A_and_the_global_state_does_not_change():
    before = torch.get_rng_state()
    one, two, three = (
        LoRALinear(
            nn.Linear(4, 4, device="meta").to_empty(device="cpu"),
            LoRAConfig(rank=2),
            generator=torch.Generator().manual_seed(seed),
        ).lora_A["default"]
        for seed in (7, 7, 8)
    )
    assert torch.equal(one, two) and not torch.equal(one, three)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_applies_only_to_the_lora_path_and_only_in_training():
    layer = make_layer(64, 5, dropout=0.5)
    x = torch.randn(1000, 64)
    base = layer.base(x)
    layer.eval()
    clean = layer(x)
    assert torch.equal(layer(x), clean)
    layer.train()
    torch.manual_seed(0)
    noisy = layer(x) - base
    torch.manual_seed(0)
    mask = torch.nn.functional.dropout(torch.ones_like(x), 0.5)
    expected = 8 * ((x * mask) @ layer.lora_A["default"].T @ layer.lora_B["default"].T)
    assert error(noisy, expected) < 1e-5
    with torch.no_grad():
        layer.lora_B["default"].zero_()
    assert torch.equal(layer(x), base)


def test_exactly_the_active_adapters_are_trained():
    layer = make_layer(names="abc")
    assert layer.active == ["a"], "the first is active, later ones are not"
    for names in (["b"], ["a", "c"], []):
        layer.set_active(names)
        trained = [name for name in "abc" if layer.lora_A[name].requires_grad]
        assert trained == names == [name for name in "abc" if layer.lora_B[name].requires_grad]
    layer.set_active(["a", "not here", "a"])
    assert layer.active == ["a"]
    layer.set_active("b")
    assert layer.active == ["b"]


def test_merging_in_16_bit_rounds_once():
    # 1 + 2⁻⁹ is half a unit of bf16 above 1: one adapter alone rounds to 0, both together do not.
    layer = LoRALinear(nn.Linear(1, 1, bias=False).to(torch.bfloat16))
    for name in "ab":
        layer.add_adapter(name, LoRAConfig(rank=1, alpha=1))
    with torch.no_grad():
        layer.base.weight.fill_(1.0)
        for name in "ab":
            layer.lora_A[name].fill_(2**-9)
            layer.lora_B[name].fill_(1.5)
    layer.set_active(["a", "b"])
    layer.merge()
    assert layer.weight.item() == 1 + 2**-7


@each_row("bad", [float("nan"), float("inf"), 1e30])
def test_a_merge_that_is_not_finite_is_refused_and_changes_nothing(bad):
    layer = make_layer(dtype=torch.float16)
    before = layer.base.weight.clone()
    with torch.no_grad():
        layer.lora_B["default"][0, 0] = bad
    with pytest.raises(ValueError, match=r"not finite in torch\.float16"):
        layer.merge()
    assert not layer.merged and torch.equal(layer.base.weight, before)


def test_adapters_cannot_change_while_merged():
    layer = make_layer(names="ab")
    state = layer.state_dict()
    layer.merge()
    for action in (
        lambda: layer.set_active(["b"]),
        lambda: layer.add_adapter("c", LoRAConfig()),
        lambda: layer.load_state_dict(state),
    ):
        with pytest.raises(RuntimeError, match=r"while merged; call unmerge\(\) first"):
            action()
    layer.unmerge()
    layer.disabled = True
    with pytest.raises(RuntimeError, match="disabled"):
        layer.merge()


def test_merging_without_active_adapters_does_nothing():
    layer = make_layer()
    layer.set_active([])
    layer.merge()
    assert not layer.merged


@each_row("merged", [False, True])
def test_copies_and_pickles_are_equal_layers(merged):
    layer = make_layer(names="ab")
    x = torch.randn(3, 6)
    if merged:
        layer.merge()
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x)) and other.merged == merged
        other.unmerge()
        assert other.base.weight.data_ptr() != layer.base.weight.data_ptr()
        assert torch.equal(other.base.weight, layer.unmerged_weight if merged else layer.weight)
        assert other.state_dict().keys() == layer.state_dict().keys()


def test_moving_or_casting_a_merged_layer_also_changes_the_saved_weight():
    layer = make_layer()
    original = layer.base.weight.clone()
    layer.merge()
    layer.to(torch.float64)
    layer.unmerge()
    assert layer.base.weight.dtype == torch.float64 and torch.equal(layer.weight.float(), original)
    layer.merge()
    assert layer.to("meta").unmerged_weight.device.type == "meta"


@each_row(
    ("arguments", "error", "says"),
    [
        ({"rank": 0}, ValueError, "rank must be an integer of at least 1, got 0"),
        ({"alpha": 0}, ValueError, "alpha must be above 0 and finite, got 0"),
        ({"alpha": "16"}, TypeError, "alpha must be a number, got '16'"),
        ({"dropout": 1.0}, ValueError, "dropout must be at least 0 and below 1, got 1"),
        ({"target_modules": []}, ValueError, "target_modules is empty"),
        ({"target_modules": None}, TypeError, "must be a string or strings, got None"),
        ({"target_modules": [1]}, TypeError, r"must be a string or strings, got \[1\]"),
        ({"modules_to_save": "head"}, TypeError, "modules_to_save must be a list of strings"),
    ],
)
def test_an_invalid_setting_says_what_is_expected(arguments, error, says):
    with pytest.raises(error, match=says):
        LoRAConfig(**arguments)


def test_a_configuration_is_frozen_and_hashable_and_copies_its_targets():
    targets = ["v_proj", "q_proj"]
    config = LoRAConfig(target_modules=targets)
    targets.append("k_proj")
    assert config.target_modules == ("q_proj", "v_proj")
    assert config == LoRAConfig(target_modules={"q_proj", "v_proj"})
    assert len({config, LoRAConfig()}) == 2
    with pytest.raises(AttributeError):
        config.rank = 4


@each_row("module", [nn.Conv1d(2, 2, 1), nn.Embedding(3, 2), "q_proj"])
def test_only_a_linear_layer_can_be_wrapped(module):
    with pytest.raises(TypeError, match=r"wraps an nn\.Linear, got"):
        LoRALinear(module)


@each_row("name", ["", "a.b", "a b", "keys", "training", "default"])
def test_an_invalid_or_existing_name_is_refused(name):
    layer = make_layer()
    with pytest.raises(ValueError, match=r"is invalid|already exists"):
        layer.add_adapter(name, LoRAConfig())
    assert list(layer.configs) == ["default"]


def test_the_layer_shows_its_adapters():
    assert "ranks={'a': 2, 'b': 2}, active=['a'], merged=False" in repr(make_layer(names="ab"))
