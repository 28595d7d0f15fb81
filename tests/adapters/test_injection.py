"""Adapters on a whole model: injecting, switching, merging, combining and removing them."""

import math

import pytest
import torch
from torch import nn

from course_pkg.adapters.combining import add_weighted_adapter
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.injection import (
    active_adapters,
    adapter_layers,
    adapter_names,
    disable_adapters,
    inject,
    merge_adapters,
    remove_adapters,
    set_adapter,
    trainable_parameters,
    unmerge_adapters,
)
from course_pkg.adapters.lora import LoRAConfig, LoRALinear
from course_pkg.lm.load import load
from tests.adapters.builders import build
from tests.parity.small_models import logits
from tests.tables import each_row


def give_effect(model, seed=0):
    """Fill every B with random values, so that every adapter has an effect."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in adapter_layers(model).values():
            for B in layer.lora_B.values():
                B.copy_(0.02 * torch.randn(B.shape, generator=generator))


@pytest.fixture
def model():
    return build()


@pytest.fixture
def adapted(model):
    """Two adapters that have an effect, on different but overlapping modules."""
    inject(model, LoRAConfig(rank=2, target_modules=["q_proj", "v_proj"]), "law")
    poetry = LoRAConfig(
        rank=3,
        alpha=6,
        use_rslora=True,
        target_modules=["v_proj", "up_proj"],
        rank_pattern={"v_proj": 1},
        alpha_pattern={"up_proj": 40},
    )
    inject(model, poetry, "poetry")
    give_effect(model)
    return model


def test_injection_freezes_other_parameters_and_changes_no_output(model):
    before = logits(model)
    names = inject(model, LoRAConfig(rank=4))
    assert len(names) == 14 and torch.equal(logits(model), before)
    trainable = trainable_parameters(model)
    assert sorted(trainable) == sorted(
        f"{name}.lora_{part}.default" for name in names for part in "AB"
    )


def test_the_same_seed_gives_the_same_adapter_and_layers_differ(model):
    other = build()
    for each in (model, other):
        inject(each, LoRAConfig(rank=2), generator=torch.Generator().manual_seed(3))
    for name, parameter in trainable_parameters(model).items():
        assert torch.equal(parameter, other.get_parameter(name))
    first, second = (model.model.layers[i].self_attn.q_proj.lora_A["default"] for i in (0, 1))
    assert not torch.equal(first, second)


def test_a_second_adapter_is_inactive_and_a_duplicate_name_is_refused(adapted):
    assert adapter_names(adapted) == ["law", "poetry"] and active_adapters(adapted) == ["law"]
    with pytest.raises(ValueError, match="already has an adapter 'law'"):
        inject(adapted, LoRAConfig(rank=2, target_modules=["o_proj"]), "law")
    for bad in ("novel", ["law", "novel"], []):
        with pytest.raises(ValueError, match=r"of the adapters \['law', 'poetry'\], got"):
            set_adapter(adapted, bad)


def test_disabling_gives_the_base_model_and_an_error_enables_the_adapters_again(adapted):
    base = logits(build())
    on = logits(adapted)
    with pytest.raises(KeyError), disable_adapters(adapted):
        assert torch.equal(logits(adapted), base)
        with disable_adapters(adapted):
            assert torch.equal(logits(adapted), base)
        assert torch.equal(logits(adapted), base), "the inner block must not enable them"
        raise KeyError
    assert torch.equal(logits(adapted), on)


def test_nothing_is_switched_added_or_disabled_while_merged(adapted):
    merge_adapters(adapted)
    for action in (
        lambda: set_adapter(adapted, "poetry"),
        lambda: inject(adapted, LoRAConfig(rank=1), "third"),
        lambda: disable_adapters(adapted).__enter__(),
    ):
        with pytest.raises(RuntimeError, match=r"call unmerge_adapters\(model\)"):
            action()
    assert adapter_names(adapted) == ["law", "poetry"]


def test_a_merge_that_fails_merges_nothing_and_names_the_module(adapted):
    with torch.no_grad():
        adapted.model.layers[1].self_attn.v_proj.lora_B["law"][0, 0] = torch.nan
    with pytest.raises(ValueError, match="not finite") as caught:
        merge_adapters(adapted)
    assert caught.value.__notes__ == ["in module model.layers.1.self_attn.v_proj"]
    assert not any(layer.merged for layer in adapter_layers(adapted).values())


def test_merging_a_tied_head_does_not_change_the_embedding(model):
    assert model.lm_head.weight is model.model.embed_tokens.weight
    inject(model, LoRAConfig(rank=2, target_modules=["lm_head"]))
    give_effect(model)
    embedding = model.model.embed_tokens.weight.clone()
    before = logits(model)
    merge_adapters(model)
    assert torch.equal(model.model.embed_tokens.weight, embedding)
    assert torch.allclose(logits(model), before, rtol=1e-5, atol=1e-6)
    unmerge_adapters(model)
    assert model.lm_head.base.weight is model.model.embed_tokens.weight


@each_row("config", [LoRAConfig(rank=2), DoRAConfig(rank=2)])
def test_a_module_with_two_names_gets_one_adapter_in_both_places(config):
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    assert inject(model, config) == ["0"] and model[0] is model[2]
    give_effect(model)
    x = torch.ones(2, 4)
    before = model(x)
    assert not torch.allclose(before, shared(torch.tanh(shared(x))))
    merge_adapters(model)
    assert torch.allclose(model(x), before, atol=1e-6)
    remove_adapters(model)
    assert model[0] is model[2] is shared and torch.allclose(model(x), before, atol=1e-6)


def test_a_weighted_adapter_is_exactly_the_weighted_sum(adapted):
    names = ["poetry", "law"]
    weights = [0.3, -2.0]
    add_weighted_adapter(adapted, names, weights, "mix")
    assert active_adapters(adapted) == ["law"]
    for layer in adapter_layers(adapted).values():
        assert layer.configs["mix"].rank == 5 and layer.configs["mix"].scaling_of() == 1
        parts = [
            weight * layer.delta_weight(name).double()
            for name, weight in zip(names, weights, strict=True)
            if name in layer.configs
        ]
        assert torch.allclose(layer.delta_weight("mix").double(), sum(parts), rtol=1e-5, atol=1e-6)


def test_a_weighted_adapter_is_only_on_the_modules_of_its_parts(adapted):
    add_weighted_adapter(adapted, ["law"], [2.0], "louder")
    where = [name for name, layer in adapter_layers(adapted).items() if "louder" in layer.configs]
    assert where == [n for n, layer in adapter_layers(adapted).items() if "law" in layer.configs]


@pytest.mark.parametrize(
    ("names", "weights", "new"),
    [
        (["law"], [1.0, 2.0], "mix"),
        (["law", "novel"], [1, 1], "mix"),
        ([], [], "mix"),
        (["law", "poetry"], [1.0, math.nan], "mix"),
        (["law", "poetry"], [1.0, 1.0], "law"),
    ],
)
def test_an_invalid_weighted_adapter_is_refused(adapted, names, weights, new):
    with pytest.raises(ValueError, match="adapter"):
        add_weighted_adapter(adapted, names, weights, new)
    assert adapter_names(adapted) == ["law", "poetry"]


def test_only_lora_on_linear_layers_can_be_added():
    model = nn.Sequential(nn.Linear(2, 2))
    inject(model, DoRAConfig(rank=1), "a")
    with pytest.raises(TypeError, match="only LoRA on linear layers can be added; 0 has DoRA"):
        add_weighted_adapter(model, ["a"], [1.0], "mix")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: inject(load("tiny"), LoRAConfig()), "an nn.Module, got LoadedModel"),
        (lambda m: inject(m, {"rank": 8}), "config must be a LoRAConfig or .*, got {'rank': 8}"),
        (lambda m: inject(m, LoRAConfig(), generator=7), "must be a torch.Generator"),
        (lambda m: add_weighted_adapter(m, "law", [1.0], "mix"), "put it into"),
    ],
)
def test_an_argument_of_the_wrong_type_is_named_and_the_model_stays_as_it_was(model, call, says):
    with pytest.raises(TypeError, match=says):
        call(model)
    assert not adapter_layers(model)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_single_layer_is_a_model_too():
    single = LoRALinear(nn.Linear(2, 2), LoRAConfig(rank=1))
    merge_adapters(single)
    assert single.merged and adapter_layers(single) == {"": single}


def test_injection_keeps_train_and_eval_mode(model):
    for mode in (True, False):
        model = build().train(mode)
        inject(model, LoRAConfig(rank=1, target_modules=["q_proj"]))
        assert all(layer.training is mode for layer in adapter_layers(model).values())
