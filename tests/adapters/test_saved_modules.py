"""Modules trained in full beside an adapter: merged state, files, and which ones an entry names."""

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
from course_pkg.lm.load import load

from ..parity.small_models import logits, shaken

SAVED = {"modules_to_save": ["lm_head", "norm"]}
QV = {"target_modules": ["q_proj", "v_proj"]} | SAVED
CONFIGS = {
    "lora": LoRAConfig(rank=2, **QV),
    "dora": DoRAConfig(rank=2, **QV),
    "ia3": IA3Config(**SAVED),
    "adalora": AdaLoRAConfig(total_step=5, initial_rank=3, target_rank=2, **QV),
}
each_method = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def adapted(config):
    """A model whose adapter and trained modules have an effect."""
    model = load("tiny").model
    inject(model, config)
    return shaken(model)


@each_method
def test_a_merged_model_has_the_state_dict_of_the_unmerged_one(config):
    model = adapted(config)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    merge_adapters(model)
    merged = model.state_dict()
    unmerge_adapters(model)
    after = model.state_dict()
    assert before.keys() == merged.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(merged[name], tensor) and torch.equal(after[name], tensor), name


@each_method
def test_a_merged_models_state_dict_gives_another_model_the_same_outputs(config):
    model = adapted(config)
    expected = logits(model)
    merge_adapters(model)
    other = load("tiny").model
    inject(other, config)
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits(other), expected)
    merge_adapters(other)
    assert torch.equal(logits(other), logits(model))


@each_method
def test_an_adapter_that_is_saved_while_merged_loads_with_the_same_outputs(config, tmp_path):
    model = adapted(config)
    expected = logits(model)
    merge_adapters(model)
    save_adapter(model, tmp_path)
    other = load("tiny").model
    load_adapter(other, tmp_path)
    assert torch.equal(logits(other), expected)


@each_method
def test_save_pretrained_works_while_merged_and_after_removal(config, tmp_path):
    # "tiny" ties lm_head to its embedding, which transformers' save_pretrained must find by name.
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
    model = load("tiny").model
    targets = inject(model, LoRAConfig(2, target_modules=["q_proj"], modules_to_save=["norm"]))
    assert len(targets) == 2
    blocks = [f"model.layers.{i}.{n}" for i in range(2)
              for n in ("input_layernorm", "post_attention_layernorm")]  # fmt: skip
    assert saved_names(model) == [*blocks, "model.norm"]


def test_what_lies_in_a_saved_module_is_no_target(tmp_path):
    config = LoRAConfig(rank=2, target_modules="all-linear", modules_to_save=["mlp"])
    model = adapted(config)
    assert saved_names(model) == ["model.layers.0.mlp", "model.layers.1.mlp"]
    others = set(adapter_layers(model)) - set(saved_names(model))
    assert {name.split(".")[3] for name in others} == {"self_attn"}
    save_adapter(model, tmp_path)
    other = load("tiny").model
    load_adapter(other, tmp_path)
    assert torch.equal(logits(other), logits(model))


def test_a_file_may_name_modules_that_the_model_lacks(tmp_path):
    """As in PEFT, which adds both "classifier" and "score" for classification."""
    config = LoRAConfig(rank=2, target_modules=["q_proj"], modules_to_save=["score", "lm_head"])
    model = load("tiny").model
    with pytest.raises(ValueError, match="'score' matches no module"):
        inject(model, config)
    model = adapted(LoRAConfig(rank=2, target_modules=["q_proj"], modules_to_save=["lm_head"]))
    save_adapter(model, tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(path.read_text().replace('"lm_head"', '"lm_head", "score"'))
    other = load("tiny").model
    load_adapter(other, tmp_path)
    assert torch.equal(logits(other), logits(model))


def test_a_module_with_an_adapter_is_not_trained_in_full():
    model = load("tiny").model
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
