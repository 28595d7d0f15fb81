"""Prompt tuning equals PEFT: outputs under both paddings, losses, generated text and files."""

import json
import warnings

import pytest
import torch
from peft import PeftModel, PromptTuningConfig, TaskType, get_peft_model

from course_pkg.adapters import prompts
from course_pkg.adapters.injection import disable_adapters, trainable_parameters
from course_pkg.adapters.methods import adapt, load, save
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load as load_model

from .small_models import FOUR_HEADS, TEXT, close, gpt2, llama, padded_batch, run

N = 3


def build(kind):
    if kind == "gpt2":
        return gpt2().eval()
    return llama(FOUR_HEADS).eval()


@pytest.fixture(params=["llama", "gpt2"])
def pair(request, tmp_path):
    """Our model and PEFT's with the same weights, by way of PEFT's file."""
    kind = request.param
    settings = {"num_virtual_tokens": N, "task_type": TaskType.CAUSAL_LM}
    theirs = get_peft_model(build(kind), PromptTuningConfig(**settings)).eval()
    theirs.save_pretrained(tmp_path)
    return kind, load(build(kind), tmp_path), theirs


@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_logits_and_losses_are_equal_under_every_padding(pair, padding):
    kind, ours, theirs = pair
    ours_out, theirs_out = (run(model, padded_batch(padding)) for model in (ours, theirs))
    real = padded_batch(padding)["attention_mask"] == 1
    assert close(ours_out.logits[real], theirs_out.logits[:, N:][real])
    assert ours_out.loss.item() == pytest.approx(theirs_out.loss.item(), rel=1e-6)
    plain = run(build(kind), padded_batch(padding))
    assert not close(ours_out.logits, plain.logits)
    with disable_adapters(ours), theirs.disable_adapter():
        assert torch.equal(run(ours, padded_batch(padding)).logits, plain.logits)


def test_five_steps_of_training_have_the_same_losses_and_change_only_the_prompt(pair):
    _, ours, theirs = pair
    before = {name: p.clone() for name, p in ours.base.named_parameters()}
    batches = [padded_batch("right"), padded_batch("none")]
    config = TrainConfig(steps=5, learning_rate=3e-2, progress=False, shuffle=False)
    losses = [train(model, batches, config).losses for model in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] < losses[0][0]
    assert all(torch.equal(p, before[name]) for name, p in ours.base.named_parameters())
    counted = sum(p.numel() for p in trainable_parameters(ours).values())
    assert counted == theirs.get_nb_trainable_parameters()[0] == N * 16


def test_greedy_text_is_equal_with_a_cache_and_without(pair):
    _, ours, theirs = pair
    settings = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    inputs = {"input_ids": TEXT, "attention_mask": torch.ones_like(TEXT)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Position ids are not supported")
        texts = [model.generate(**inputs, **settings) for model in (ours, theirs)]
        beams = [model.generate(**inputs, **settings, num_beams=3) for model in (ours, theirs)]
    assert torch.equal(*texts) and texts[0].shape == (2, 22)
    assert torch.equal(ours.generate(**inputs, **settings, use_cache=False), texts[0])
    assert torch.equal(*beams)


def test_under_left_padding_our_generation_does_not_depend_on_the_pads_and_pefts_does(pair):
    _, ours, theirs = pair
    settings = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0, "eos_token_id": None,
                "return_dict_in_generate": True, "output_logits": True}  # fmt: skip
    padded = {name: tensor[:1] for name, tensor in padded_batch("left").items() if name != "labels"}
    alone = {"input_ids": TEXT[:1, :8], "attention_mask": torch.ones(1, 8, dtype=torch.long)}

    def differences(model):
        return [
            (a - b).norm() / b.norm()
            for a, b in zip(
                *(model.generate(**inputs, **settings).logits for inputs in (padded, alone)),
                strict=True,
            )
        ]

    assert max(differences(ours)) < 1e-5
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Position ids are not supported")
        assert max(differences(theirs)) > 1e-4


def test_our_file_is_read_by_peft_and_describes_the_model_as_peft_does(pair, tmp_path):
    kind, ours, theirs = pair
    save(ours, tmp_path / "ours")
    back = PeftModel.from_pretrained(build(kind), tmp_path / "ours")
    assert torch.equal(
        run(back, padded_batch("right")).logits, run(theirs, padded_batch("right")).logits
    )
    written, peft = (
        json.loads((folder / "adapter_config.json").read_text())
        for folder in (tmp_path / "ours", tmp_path)
    )
    assert {key: peft[key] for key in written} == written


@pytest.mark.parametrize("n", [3, 4, 9])
def test_a_text_initializes_the_same_prompt(n, tmp_path):
    model, tokenizer = load_model("tiny").model, load_model("tiny").tokenizer
    tokenizer.save_pretrained(tmp_path)
    text = "abc"
    theirs = get_peft_model(
        load_model("tiny").model,
        PromptTuningConfig(
            num_virtual_tokens=n, prompt_tuning_init="TEXT", prompt_tuning_init_text=text,
            tokenizer_name_or_path=str(tmp_path), task_type="CAUSAL_LM",
        ),
    )  # fmt: skip
    ours = adapt(model, prompts.PromptTuningConfig.from_text(text, tokenizer, n))
    (prompt,) = trainable_parameters(ours).values()
    assert torch.equal(prompt, theirs.prompt_encoder["default"].embedding.weight)
