"""Adapters have the same logits and losses as in PEFT on a real model, SmolLM2-135M-Instruct."""

import copy

import pytest
import torch
from peft import PeftModel

from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.injection import adapter_layers, inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load


@pytest.mark.slow
@pytest.mark.model
def test_trained_adapters_have_the_same_logits_and_losses_in_both(tmp_path):
    model, tokenizer = load("smollm2-135m")
    base = copy.deepcopy(model)
    inject(model, LoRAConfig(rank=4, target_modules=["q_proj", "v_proj"]))
    tokens = tokenizer("LoRA adds a low-rank update to a frozen weight.", return_tensors="pt")
    batch = {"input_ids": tokens.input_ids, "labels": tokens.input_ids}
    history = train(model, [batch], TrainConfig(steps=3, learning_rate=1e-2, progress=False))
    assert history.losses[-1] < history.losses[0] - 0.1
    save_adapter(model, tmp_path / "ours")

    def logits(each):
        with torch.no_grad():
            return each(input_ids=tokens.input_ids).logits

    expected = logits(model)
    assert not torch.allclose(logits(base), expected, rtol=1e-2)
    peft_model = PeftModel.from_pretrained(base, tmp_path / "ours", is_trainable=True)
    peft_model.eval()
    error = (logits(peft_model) - expected).norm() / expected.norm()
    assert error <= 1e-6
    peft_model.save_pretrained(tmp_path / "theirs")
    peft_model.unload()
    names = sorted(adapter_layers(model))
    again = TrainConfig(steps=2, learning_rate=1e-3, progress=False)
    other = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "ours", is_trainable=True)
    load_adapter(base, tmp_path / "theirs")
    assert sorted(adapter_layers(base)) == names
    error = (logits(base) - expected).norm() / expected.norm()
    assert error <= 1e-6
    ours, theirs = (train(each, [batch], again).losses for each in (base, other))
    assert ours == pytest.approx(theirs, abs=1e-5)
