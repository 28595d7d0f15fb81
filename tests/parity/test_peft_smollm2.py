"""Adapters have the same logits and losses as in PEFT on a real model, SmolLM2-135M-Instruct."""

import copy

import pytest
from peft import PeftModel

from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load
from tests.parity.small_models import close, error, logits


@pytest.mark.slow
@pytest.mark.exhaustive  # small models are compared in `test_peft_methods`
@pytest.mark.model
def test_trained_adapters_have_the_same_logits_and_losses_in_both(tmp_path):
    model, tokenizer = load("smollm2-135m")
    base = copy.deepcopy(model)
    inject(model, LoRAConfig(rank=4, target_modules=["q_proj", "v_proj"]))
    text = "LoRA adds a low-rank update to a frozen weight."
    ids = tokenizer(text, return_tensors="pt").input_ids
    batch = {"input_ids": ids, "labels": ids}
    history = train(model, [batch], TrainConfig(steps=3, learning_rate=1e-2, progress=False))
    assert history.losses[-1] < history.losses[0] - 0.1
    save_adapter(model, tmp_path / "ours")
    expected = logits(model, ids)
    assert error(logits(base, ids), expected) > 1e-2
    theirs = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "ours", is_trainable=True)
    assert close(logits(theirs.eval(), ids), expected)
    theirs.save_pretrained(tmp_path / "theirs")
    load_adapter(base, tmp_path / "theirs")
    assert close(logits(base, ids), expected)
    config = TrainConfig(steps=2, learning_rate=1e-3, progress=False)
    losses = [train(each, [batch], config).losses for each in (base, theirs)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
