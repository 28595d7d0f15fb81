"""Prefix tuning and P-tuning v2 equal PEFT: outputs, losses, generated text and files."""

import json

import pytest
import torch
from peft import PeftModel, PrefixTuningConfig, TaskType, get_peft_model
from transformers import Gemma2Config, Gemma2ForCausalLM

from course_pkg.adapters import prefixes
from course_pkg.adapters.injection import disable_adapters, trainable_parameters
from course_pkg.adapters.methods import adapt, load, save
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train

from .small_models import FOUR_HEADS, close, gpt2, llama, padded_batch, run

N = 3
CASES = {
    "p-tuning-v2": ("llama", {}),
    "mlp": ("llama", {"prefix_projection": True}),
    "wide-mlp": ("llama", {"prefix_projection": True, "encoder_hidden_size": 40}),
    "head-dim": ("llama-head-dim", {}),
    "gpt2": ("gpt2", {"prefix_projection": True}),
    "sliding-window": ("gemma2", {}),
}


def build(kind):
    if kind == "gpt2":
        return gpt2().eval()
    if kind == "gemma2":
        torch.manual_seed(0)
        config = Gemma2Config(**FOUR_HEADS, head_dim=4, sliding_window=8)
        return Gemma2ForCausalLM(config).eval()
    extra = {"head_dim": 6} if kind == "llama-head-dim" else {}
    return llama(FOUR_HEADS, **extra).eval()


@pytest.fixture(params=CASES)
def pair(request):
    """Our model and PEFT's with the same weights, the MLP's included."""
    kind, settings = CASES[request.param]
    theirs = get_peft_model(
        build(kind),
        PrefixTuningConfig(num_virtual_tokens=N, task_type=TaskType.CAUSAL_LM, **settings),
    ).eval()
    reparametrize, h = (settings.get(k) for k in ("prefix_projection", "encoder_hidden_size"))
    ours = adapt(build(kind), prefixes.PrefixTuningConfig(N, bool(reparametrize), h))
    encoder = theirs.prompt_encoder["default"].state_dict()
    names = {"embedding.weight": "embedding" if reparametrize else "prompt_embeddings",
             "transform.0.weight": "down", "transform.0.bias": "down_bias",
             "transform.2.weight": "up", "transform.2.bias": "up_bias"}  # fmt: skip
    ours.encoders["default"].load_state_dict({names[k]: v for k, v in encoder.items()})
    return kind, ours, theirs


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_logits_and_losses_are_equal_under_every_padding(pair, padding, positions):
    kind, ours, theirs = pair
    ours_out, theirs_out = (
        run(model, padded_batch(padding, positions)) for model in (ours, theirs)
    )
    real = padded_batch(padding)["attention_mask"] == 1
    assert close(ours_out.logits[real], theirs_out.logits[real])
    assert ours_out.loss.item() == pytest.approx(theirs_out.loss.item(), rel=1e-6)
    plain = run(build(kind), padded_batch(padding))
    assert not close(ours_out.logits, plain.logits)
    with disable_adapters(ours):
        assert torch.equal(run(ours, padded_batch(padding)).logits, plain.logits)


def test_five_steps_of_training_have_the_same_losses(pair):
    _, ours, theirs = pair
    batches = [padded_batch("right"), padded_batch("none")]
    config = TrainConfig(steps=5, learning_rate=3e-2, progress=False, shuffle=False)
    losses = [train(model, batches, config).losses for model in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] < losses[0][0]
    counted = sum(p.numel() for p in trainable_parameters(ours).values())
    assert counted == theirs.get_nb_trainable_parameters()[0]


@pytest.mark.parametrize("padding", ["none", "left"])
def test_greedy_text_is_equal_with_a_cache_and_without(pair, padding):
    _, ours, theirs = pair
    settings = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    inputs = {k: v for k, v in padded_batch(padding).items() if k != "labels"}
    texts = [model.generate(**inputs, **settings) for model in (ours, theirs)]
    assert torch.equal(*texts) and texts[0].shape == (2, 22)
    assert torch.equal(ours.generate(**inputs, **settings, use_cache=False), texts[0])


def test_files_cross_both_ways_and_hold_the_prefix_without_the_mlp(pair, tmp_path):
    kind, ours, theirs = pair
    save(ours, tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    before = run(ours, padded_batch("right")).logits
    for model in (
        PeftModel.from_pretrained(build(kind), tmp_path / "ours"),
        load(build(kind), tmp_path / "theirs"),
    ):
        assert close(run(model, padded_batch("right")).logits, before)
    written, peft = (
        json.loads((tmp_path / name / "adapter_config.json").read_text())
        for name in ("ours", "theirs")
    )
    assert {key: peft[key] for key in written} == written
    back = load(build(kind), tmp_path / "ours")
    assert list(back.weights_of("default")) == ["prompt_embeddings"]
    save(back, tmp_path / "again")
    again = (tmp_path / "again" / "adapter_model.safetensors").read_bytes()
    assert again == (tmp_path / "ours" / "adapter_model.safetensors").read_bytes()


def test_a_zero_prefix_is_pefts_and_has_an_effect():
    settings = {"num_virtual_tokens": N, "init_weights": "zero", "task_type": TaskType.CAUSAL_LM}
    for reparametrize in (False, True):
        theirs = get_peft_model(
            build("llama"), PrefixTuningConfig(**settings, prefix_projection=reparametrize)
        ).eval()
        config = prefixes.PrefixTuningConfig(N, reparametrize, init="zero")
        ours = adapt(build("llama"), config)
        logits = run(ours, padded_batch("none")).logits
        assert close(logits, run(theirs, padded_batch("none")).logits)
        assert not close(logits, run(build("llama"), padded_batch("none")).logits)
