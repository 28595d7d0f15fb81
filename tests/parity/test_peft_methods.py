"""Every layer method equals PEFT: outputs, merging, training, and files both ways."""

import copy

import pytest
import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model

from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.injection import (
    adapter_layers,
    disable_adapters,
    inject,
    merge_adapters,
    remove_adapters,
    trainable_parameters,
    unmerge_adapters,
)
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train

from .small_models import BATCH, error, gpt2, llama, logits, shaken

KVF, GPT2_KVF = ["k_proj", "v_proj", "down_proj"], ["c_attn", "mlp.c_proj"]


def lora(**settings):
    return LoRAConfig(rank=2, alpha=4, **settings)


def dora(**settings):
    return DoRAConfig(rank=2, alpha=4, **settings)


def adalora(**settings):
    schedule = {"total_step": 5, "initial_rank": 3, "target_rank": 2, "orth_reg_weight": 0.0}
    return AdaLoRAConfig(**schedule | settings)


def ia3(**settings):
    return IA3Config(**settings)


CASES = {
    "lora-conv1d": ("gpt2", lora(target_modules="all-linear")),
    "lora-conv1d-by-name": ("gpt2", lora(target_modules=["c_attn", "mlp.c_fc"])),
    "lora-embedding": ("llama", lora(target_modules=["embed_tokens"])),
    "lora-embedding-and-linear": ("llama", lora(target_modules=["embed_tokens", "v_proj"])),
    "lora-saved-head": ("llama", lora(target_modules=["q_proj"], modules_to_save=["lm_head"])),
    "lora-saved-norms": ("llama", lora(target_modules=["q_proj"], modules_to_save=["model.norm"])),
    "lora-regex": ("llama", lora(target_modules=r"model\.layers\.1\..*(q|v)_proj", dropout=0.1)),
    "lora-rslora-bf16": ("bf16", lora(use_rslora=True)),
    "dora": ("llama", dora(target_modules="all-linear")),
    "dora-rslora": ("llama", dora(target_modules=["q_proj", "up_proj"], use_rslora=True)),
    "dora-conv1d": ("gpt2", dora(target_modules=["c_attn", "mlp.c_fc"])),
    "dora-bias": ("bias", dora(target_modules=r".*\.(v|down)_proj")),
    "dora-bf16": ("bf16", dora()),
    "dora-saved": ("llama", dora(target_modules=["v_proj"], modules_to_save=["lm_head"])),
    "adalora": ("llama", adalora(target_modules="all-linear")),
    "adalora-conv1d": ("gpt2", adalora(target_modules=["c_attn", "mlp.c_fc"], alpha=3)),
    "adalora-bias": ("bias", adalora(target_modules=r".*\.(v|down)_proj")),
    "adalora-bf16": ("bf16", adalora()),
    "adalora-saved": ("llama", adalora(target_modules=["v_proj"], modules_to_save=["lm_head"])),
    "ia3": ("llama", ia3()),
    "ia3-conv1d": ("gpt2", ia3(target_modules=GPT2_KVF, feedforward_modules=["mlp.c_proj"])),
    "ia3-bias": ("bias", ia3()),
    "ia3-regex": (
        "bias",
        ia3(target_modules=r".*\.(k|down)_proj", feedforward_modules=r".*\.down_proj"),
    ),
    "ia3-no-feedforward": ("llama", ia3(target_modules=["v_proj"], feedforward_modules=[])),
    "ia3-bf16": ("bf16", ia3()),
    "ia3-saved": ("llama", ia3(modules_to_save=["lm_head"])),
}


def build(kind):
    if kind == "gpt2":
        return gpt2()
    model = llama(attention_bias=kind == "bias", mlp_bias=kind == "bias")
    return model.to(torch.bfloat16 if kind == "bf16" else torch.float32)


@pytest.fixture(params=CASES)
def pair(request, tmp_path):
    """Our model and PEFT's with the same random adapter, by way of our file."""
    kind, config = CASES[request.param]
    ours = build(kind)
    inject(ours, config)
    save_adapter(shaken(ours), tmp_path / "ours")
    theirs = PeftModel.from_pretrained(build(kind), tmp_path / "ours", is_trainable=True)
    return request.param, ours, theirs


def test_outputs_are_equal_also_disabled_merged_and_removed(pair):
    name, ours, theirs = pair
    kind = CASES[name][0]
    exact = 1e-2 if kind == "bf16" else 1e-6
    # LoRA adds to the weight; the other methods also multiply it, which rounds once more.
    rounded = exact if name.startswith("lora") and kind != "bf16" else 2 * exact
    for model in (ours, theirs):
        model.eval()
    base, with_adapter = logits(build(kind)), logits(ours)
    assert error(with_adapter, logits(theirs)) <= exact
    assert error(with_adapter, base) > 2 * exact
    with disable_adapters(ours):
        assert torch.equal(logits(ours), base)
    merge_adapters(ours)
    merge_adapters(ours)
    assert error(logits(ours), with_adapter) <= rounded
    assert error(logits(ours), logits(theirs.merge_and_unload())) <= rounded
    unmerge_adapters(ours)
    assert torch.equal(logits(ours), with_adapter)
    merge_adapters(ours)
    remove_adapters(ours)
    assert error(logits(ours), with_adapter) <= rounded and not adapter_layers(ours)
    assert ours.state_dict().keys() == build(kind).state_dict().keys()


def test_five_steps_of_training_have_the_same_losses(pair):
    name, ours, theirs = pair
    config = TrainConfig(steps=5, learning_rate=1e-2, progress=False)
    losses = [train(model, [BATCH], config).losses for model in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2 if CASES[name][0] == "bf16" else 1e-5)
    assert losses[0][-1] < losses[0][0]


def test_pefts_file_is_read_and_counts_are_equal(pair, tmp_path):
    name, ours, theirs = pair
    kind, config = CASES[name]
    theirs.save_pretrained(tmp_path / "theirs")
    back = build(kind)
    loaded = load_adapter(back, tmp_path / "theirs", "other")
    assert loaded == config or config.target_modules == "all-linear"
    assert torch.equal(logits(back.eval()), logits(ours.eval()))
    counted = sum(p.numel() for p in trainable_parameters(ours).values())
    # On a 16-bit base, PEFT's cast makes `ranknum`, a constant of the scale, a trained parameter.
    trained = [p for n, p in theirs.named_parameters() if p.requires_grad and "ranknum" not in n]
    assert counted == sum(p.numel() for p in trained)


@pytest.mark.parametrize("name", CASES)
def test_a_new_adapter_changes_nothing(name):
    kind, config = CASES[name]
    model = build(kind).eval()
    before = logits(model)
    inject(model, config)
    assert torch.equal(logits(model), before)


def test_an_embedding_starts_as_in_peft():
    model = get_peft_model(
        llama(), LoraConfig(r=2, target_modules=["embed_tokens"], task_type=TaskType.CAUSAL_LM)
    )
    weights = {n.split(".")[-2]: p for n, p in model.named_parameters() if p.requires_grad}
    assert weights["lora_embedding_A"].abs().max() == 0
    assert weights["lora_embedding_B"].std().item() == pytest.approx(1, abs=0.4)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"modules_to_save": ["lm_hed"]}, "'lm_hed' matches no module; did you mean 'lm_head'"),
        ({"modules_to_save": ["q_proj"], "target_modules": ["q_proj"]}, "can have only one"),
        ({"modules_to_save": ["mlp"], "target_modules": ["up_proj"]}, "is or contains"),
        ({"modules_to_save": ["act_fn"]}, "has no parameters"),
    ],
)
def test_impossible_modules_to_save_are_refused_and_change_nothing(settings, says):
    model = llama()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=says):
        inject(model, LoRAConfig(**settings))
    assert model.state_dict().keys() == before.keys()
    assert all(p.requires_grad for p in model.parameters())
