"""Where DoRA needs care: several adapters, dropout, and the first magnitude of a 16-bit base."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.injection import inject, merge_adapters, set_adapter

from .small_models import error, llama, logits, shaken

TARGETS = ["v_proj", "down_proj"]


def build(dtype=torch.float32):
    return llama(mlp_bias=True).to(dtype)


def save_random(folder, seed, **settings):
    model = build()
    inject(model, DoRAConfig(rank=2, alpha=4, target_modules=TARGETS, **settings))
    save_adapter(shaken(model, seed), folder)
    return folder


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_several_active_adapters_act_in_turn_as_in_peft(tmp_path, order):
    folders = {name: save_random(tmp_path / name, seed) for seed, name in enumerate("ab")}
    ours, theirs = build(), PeftModel.from_pretrained(build(), folders["a"], "a")
    theirs.load_adapter(folders["b"], "b")
    for name, folder in folders.items():
        load_adapter(ours, folder, name)
    set_adapter(ours, order)
    theirs.base_model.set_adapter(list(order))
    expected = logits(ours.eval())
    assert error(expected, logits(theirs.eval())) <= 1e-6
    set_adapter(ours, order[::-1])
    assert error(logits(ours), expected) > 1e-3, "the order matters"
    set_adapter(ours, order)
    merge_adapters(ours)
    assert error(logits(ours), expected) <= 2e-6
    assert error(logits(ours), logits(theirs.merge_and_unload())) <= 2e-6


def test_dropout_takes_the_same_places_as_in_peft(tmp_path):
    save_random(tmp_path, 3, dropout=0.4)
    ours, theirs = build(), PeftModel.from_pretrained(build(), tmp_path, is_trainable=True)
    load_adapter(ours, tmp_path)
    outputs = []
    for model in (ours, theirs):
        torch.manual_seed(7)
        outputs.append(logits(model.train()))
    assert error(*outputs) <= 1e-6
    assert error(outputs[0], logits(ours.eval())) > 1e-2


def test_a_16_bit_base_starts_unchanged_where_peft_rounds_the_first_magnitude():
    reference = logits(build(torch.bfloat16))
    ours = build(torch.bfloat16)
    inject(ours, DoRAConfig(rank=2, target_modules=TARGETS))
    assert torch.equal(logits(ours), reference)
    config = LoraConfig(r=2, use_dora=True, target_modules=TARGETS)
    theirs = get_peft_model(build(torch.bfloat16), config)
    assert 0 < error(logits(theirs), reference) < 1e-2
