"""Prompt tuning, prefix tuning and P-tuning v2 equal PEFT: outputs, losses, text and files."""

import json

import pytest
import torch
from peft import PeftModel, PrefixTuningConfig, PromptTuningConfig, TaskType, get_peft_model
from transformers import Gemma2Config, Gemma2ForCausalLM

from course_pkg.adapters import prefixes, prompts
from course_pkg.adapters.injection import disable_adapters, trainable_parameters
from course_pkg.adapters.methods import adapt, load, save
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train
from tests.parity.small_models import EQUAL, FOUR_HEADS, TEXT, close, gpt2, llama, padded_batch, run

N = 3
CASES = {
    "prompt": ("llama", PromptTuningConfig, {}),
    "prompt-gpt2": ("gpt2", PromptTuningConfig, {}),
    "p-tuning-v2": ("llama", PrefixTuningConfig, {}),
    "mlp": ("llama", PrefixTuningConfig, {"prefix_projection": True}),
    "wide-mlp": (
        "llama",
        PrefixTuningConfig,
        {"prefix_projection": True, "encoder_hidden_size": 40},
    ),
    "head-dim": ("llama-head-dim", PrefixTuningConfig, {}),
    "mlp-gpt2": ("gpt2", PrefixTuningConfig, {"prefix_projection": True}),
    "sliding-window": ("gemma2", PrefixTuningConfig, {}),
}
GREEDY = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
pytestmark = pytest.mark.filterwarnings("ignore:Position ids are not supported")


def build(kind):
    if kind == "gpt2":
        return gpt2().eval()
    if kind == "gemma2":
        torch.manual_seed(0)
        config = Gemma2Config(**FOUR_HEADS, head_dim=4, sliding_window=8)
        return Gemma2ForCausalLM(config).eval()
    extra = {"head_dim": 6} if kind == "llama-head-dim" else {}
    return llama(FOUR_HEADS, **extra).eval()


def peft_model(kind, method, **settings):
    config = method(num_virtual_tokens=N, task_type=TaskType.CAUSAL_LM, **settings)
    return get_peft_model(build(kind), config).eval()


@pytest.fixture(params=CASES)
def pair(request, tmp_path):
    """The model's kind, our model and PEFT's with the same weights: of its file, or of its MLP."""
    kind, method, settings = CASES[request.param]
    theirs = peft_model(kind, method, **settings)
    if not settings:
        theirs.save_pretrained(tmp_path)
        return kind, load(build(kind), tmp_path), theirs
    config = prefixes.PrefixTuningConfig(N, True, settings.get("encoder_hidden_size"))
    ours = adapt(build(kind), config)
    encoder = theirs.prompt_encoder["default"].state_dict()
    names = {
        "embedding.weight": "embedding",
        "transform.0.weight": "down",
        "transform.0.bias": "down_bias",
        "transform.2.weight": "up",
        "transform.2.bias": "up_bias",
    }
    ours.encoders["default"].load_state_dict({names[k]: v for k, v in encoder.items()})
    return kind, ours, theirs


def is_prompt(ours):
    return isinstance(ours, prompts.PromptTunedModel)


@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_logits_and_losses_are_equal_under_every_padding(pair, padding):
    kind, ours, theirs = pair
    plain = run(build(kind), padded_batch(padding))
    for positions in (False,) if is_prompt(ours) else (False, True):  # PEFT's prompts take none
        batch = padded_batch(padding, positions)
        ours_out = run(ours, batch)
        theirs_out = run(theirs, batch)
        real = batch["attention_mask"] == 1
        text = theirs_out.logits[:, -real.shape[1] :]  # PEFT returns those of a prompt too
        assert close(ours_out.logits[real], text[real])
        assert ours_out.loss.item() == pytest.approx(theirs_out.loss.item(), rel=EQUAL)
        assert not close(ours_out.logits, plain.logits)
    with disable_adapters(ours):
        assert torch.equal(run(ours, padded_batch(padding)).logits, plain.logits)


def test_five_steps_of_training_have_the_same_losses_and_keep_the_base(pair):
    _, ours, theirs = pair
    before = {name: p.clone() for name, p in ours.base.named_parameters()}
    batches = [padded_batch("right"), padded_batch("none")]
    config = TrainConfig(steps=5, learning_rate=3e-2, progress=False, shuffle=False)
    losses = [train(model, batches, config).losses for model in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=4 * EQUAL)
    assert losses[0][-1] < losses[0][0]
    assert all(torch.equal(p, before[name]) for name, p in ours.base.named_parameters())
    counted = sum(p.numel() for p in trainable_parameters(ours).values())
    assert counted == theirs.get_nb_trainable_parameters()[0]


def test_greedy_text_is_equal_with_a_cache_and_without(pair):
    _, ours, theirs = pair
    # PEFT's text of a prompt depends on the pads: see the next test.
    for padding in ("none",) if is_prompt(ours) else ("none", "left"):
        inputs = {k: v for k, v in padded_batch(padding).items() if k != "labels"}
        texts = [model.generate(**inputs, **GREEDY) for model in (ours, theirs)]
        assert torch.equal(*texts) and texts[0].shape == (2, 22)
        assert torch.equal(ours.generate(**inputs, **GREEDY, use_cache=False), texts[0])


@pytest.mark.parametrize("pair", ["prompt", "mlp"], indirect=True)
def test_beams_are_equal(pair):
    _, ours, theirs = pair
    inputs = {k: v for k, v in padded_batch("none").items() if k != "labels"}
    beams = [model.generate(**inputs, **GREEDY, num_beams=3) for model in (ours, theirs)]
    assert torch.equal(*beams)


def test_under_left_padding_our_generation_does_not_depend_on_the_pads_and_pefts_does():
    theirs = peft_model("llama", PromptTuningConfig)
    ours = adapt(build("llama"), prompts.PromptTuningConfig(N, init="random"))
    settings = GREEDY | {"return_dict_in_generate": True, "output_logits": True}
    padded = {name: tensor[:1] for name, tensor in padded_batch("left").items() if name != "labels"}
    alone = {"input_ids": TEXT[:1, :8], "attention_mask": torch.ones(1, 8, dtype=torch.long)}

    def same(model):
        results = (model.generate(**inputs, **settings).logits for inputs in (padded, alone))
        return all((a - b).norm() < 4 * EQUAL * b.norm() for a, b in zip(*results, strict=True))

    assert same(ours) and not same(theirs)


def test_files_cross_both_ways_and_hold_the_prefix_without_the_mlp(pair, tmp_path):
    kind, ours, theirs = pair
    save(ours, tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    before = run(ours, padded_batch("right")).logits
    for model in (
        PeftModel.from_pretrained(build(kind), tmp_path / "ours"),
        load(build(kind), tmp_path / "theirs"),
    ):
        logits = run(model, padded_batch("right")).logits
        assert close(logits[:, -before.shape[1] :], before)
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


@pytest.mark.parametrize("reparametrize", [False, True])
def test_a_zero_prefix_is_pefts_and_has_an_effect(reparametrize):
    theirs = peft_model(
        "llama", PrefixTuningConfig, init_weights="zero", prefix_projection=reparametrize
    )
    ours = adapt(build("llama"), prefixes.PrefixTuningConfig(N, reparametrize, init="zero"))
    logits = run(ours, padded_batch("none")).logits
    assert close(logits, run(theirs, padded_batch("none")).logits)
    assert not close(logits, run(build("llama"), padded_batch("none")).logits)
