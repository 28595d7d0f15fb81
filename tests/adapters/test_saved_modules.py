"""Modules and biases that are trained beside an adapter: merging, files, and which are named."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.injection import (
    adapter_layers,
    inject,
    merge_adapters,
    remove_adapters,
    unmerge_adapters,
)
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.saved_module import SavedModule
from tests.adapters.builders import adapted, build, edit_config, loaded
from tests.parity.small_models import logits, shaken, small
from tests.tables import each_row

SAVED = {"modules_to_save": ["lm_head", "norm"]}
QV = {"target_modules": ["q_proj", "v_proj"]} | SAVED
CONFIGS = {
    "lora": LoRAConfig(rank=2, **QV),
    "dora": DoRAConfig(rank=2, **QV),
    "ia3": IA3Config(**SAVED),
    "adalora": AdaLoRAConfig(total_step=5, initial_rank=3, target_rank=2, **QV),
}
each_method = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@each_method
def test_a_merged_model_saves_the_unmerged_weights(config, tmp_path):
    model = adapted(config)
    expected = logits(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    merge_adapters(model)
    merged = model.state_dict()
    other = build()
    inject(other, config)
    other.load_state_dict(merged)
    assert torch.equal(logits(other), expected)
    save_adapter(model, tmp_path)
    assert torch.equal(logits(loaded(tmp_path)), expected)
    unmerge_adapters(model)
    after = model.state_dict()
    assert before.keys() == merged.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(merged[name], tensor) and torch.equal(after[name], tensor), name


@each_method
def test_save_pretrained_works_while_merged_and_after_removal(config, tmp_path):
    # The model ties lm_head to its embedding, which save_pretrained must find by name.
    model = adapted(replace(config, modules_to_save=["norm"]))
    merge_adapters(model)
    model.save_pretrained(tmp_path / "merged")
    expected = logits(model)
    remove_adapters(model)
    model.save_pretrained(tmp_path / "removed")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "removed")
    assert torch.equal(logits(plain), expected)


def saved_names(model):
    return [name for name, la in adapter_layers(model).items() if isinstance(la, SavedModule)]


def test_an_entry_matches_every_name_that_ends_with_it():
    model = build()
    targets = inject(model, LoRAConfig(2, target_modules=["q_proj"], modules_to_save=["norm"]))
    assert len(targets) == 2
    blocks = [
        f"model.layers.{i}.{n}"
        for i in range(2)
        for n in ("input_layernorm", "post_attention_layernorm")
    ]
    assert saved_names(model) == [*blocks, "model.norm"]


def test_what_lies_in_a_saved_module_is_not_a_target(tmp_path):
    config = LoRAConfig(rank=2, target_modules="all-linear", modules_to_save=["mlp"])
    model = adapted(config)
    assert saved_names(model) == ["model.layers.0.mlp", "model.layers.1.mlp"]
    others = set(adapter_layers(model)) - set(saved_names(model))
    assert {name.split(".")[3] for name in others} == {"self_attn"}
    save_adapter(model, tmp_path)
    assert torch.equal(logits(loaded(tmp_path)), logits(model))


def test_a_file_may_name_modules_that_the_model_lacks(tmp_path):
    """As in PEFT, which adds both "classifier" and "score" for classification."""
    model = adapted(LoRAConfig(rank=2, target_modules=["q_proj"], modules_to_save=["lm_head"]))
    save_adapter(model, tmp_path)
    edit_config(tmp_path, modules_to_save=["lm_head", "score"])
    assert torch.equal(logits(loaded(tmp_path)), logits(model))


@each_row(
    ("settings", "says"),
    [
        ({"modules_to_save": ["score"]}, "'score' matches no module"),
        ({"modules_to_save": ["lm_hed"]}, "'lm_hed' matches no module; did you mean 'lm_head'"),
        ({"modules_to_save": ["q_proj"], "target_modules": ["q_proj"]}, "can have only one"),
        ({"modules_to_save": ["mlp"], "target_modules": ["up_proj"]}, "is or contains"),
        ({"modules_to_save": ["act_fn"]}, "has no parameters"),
        ({"modules_to_save": ["norm\\"]}, r"modules_to_save .* is not a regex"),
    ],
)
def test_impossible_modules_to_save_are_refused_and_change_nothing(settings, says):
    model = build()
    with pytest.raises(ValueError, match=says):
        inject(model, LoRAConfig(**settings))
    assert not adapter_layers(model) and all(p.requires_grad for p in model.parameters())


def test_a_module_with_an_adapter_is_not_trained_in_full():
    model = build()
    inject(model, LoRAConfig(rank=2, target_modules=["lm_head"]), "a")
    with pytest.raises(ValueError, match="'lm_head' has an adapter"):
        inject(model, LoRAConfig(2, target_modules=["q_proj"], modules_to_save=["lm_head"]), "b")
    assert set(adapter_layers(model)) == {"lm_head"}


def test_the_models_code_reads_attributes_of_the_module_in_use():
    layer = SavedModule(nn.Linear(2, 3))
    layer.add_adapter("a", LoRAConfig())
    with torch.no_grad():
        layer.copies["a"].weight.fill_(7)
    assert layer.out_features == 3 and layer.weight[0, 0] == 7
    layer.disabled = True
    assert layer.weight is layer.base.weight
    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'nothing'"):
        _ = layer.nothing


def with_biases(bias, name="default"):
    model = small("bias")
    inject(model, LoRAConfig(2, target_modules=["q_proj"], bias=bias), name)
    return model


@each_row(("first", "second"), [("all", "none"), ("none", "all"), ("lora_only", "all")])
def test_an_adapter_with_trained_biases_is_the_models_only_one(first, second, tmp_path):
    model = with_biases(first, "a")
    save_adapter(shaken(with_biases(second, "b")), tmp_path, "b")
    before = logits(model)
    with pytest.raises(ValueError, match="trains biases of the base"):
        load_adapter(model, tmp_path, "b")
    assert torch.equal(logits(model), before)


def test_a_file_without_its_biases_is_refused(tmp_path):
    save_adapter(with_biases("lora_only"), tmp_path)
    with pytest.raises(
        ValueError, match=r"q_proj\.base_layer\.bias is a bias that this model lacks"
    ):
        load_adapter(small("llama"), tmp_path)
    edit_config(tmp_path, bias="all")
    with pytest.raises(ValueError, match="the file has no trained bias"):
        load_adapter(small("bias"), tmp_path)
