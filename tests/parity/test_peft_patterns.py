"""Ranks and alphas by module, trained biases, and modules_to_save by ending: as in PEFT."""

import json

import pytest
import torch
from peft import AdaLoraConfig, LoraConfig, PeftModel, get_peft_model

from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.combining import add_weighted_adapter
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.injection import (
    adapter_layers,
    disable_adapters,
    inject,
    merge_adapters,
    remove_adapters,
    set_adapter,
    trainable_parameters,
    unmerge_adapters,
)
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train

from .small_models import BATCH, close, gpt2, llama, logits, shaken

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PATTERNS = {
    "rank_pattern": {"q_proj": 3, r"layers\.1\.mlp\..*": 1},
    "alpha_pattern": {r"^model.layers.0.self_attn.q_proj": 5, "(k|v)_proj": 3.5, ".*_proj": 2},
}
CASES = {
    "ranks": (LoRAConfig, PATTERNS | {"target_modules": "all-linear"}),
    "order": (LoRAConfig, {"rank_pattern": {"self_attn.q_proj": 1, "q_proj": 3, ".*": 4},
                           "target_modules": ["q_proj", "v_proj"]}),
    "rslora": (LoRAConfig, PATTERNS | {"use_rslora": True}),
    "embedding": (LoRAConfig, {"target_modules": ["embed_tokens", "v_proj"],
                               "rank_pattern": {"embed_tokens": 4},
                               "alpha_pattern": {"embed_tokens": 1}}),
    "dora": (DoRAConfig, PATTERNS),
    "bias": (LoRAConfig, {"target_modules": ["q_proj", "up_proj"], "bias": "lora_only"}),
    "all-biases": (LoRAConfig, {"target_modules": ["q_proj"], "bias": "all"}),
    "bias-dora": (DoRAConfig, {"target_modules": ["q_proj"], "bias": "lora_only"}),
    "bias-adalora": (AdaLoRAConfig, {"target_modules": ["q_proj", "down_proj"], "bias": "all",
                                     "total_step": 9, "initial_rank": 3, "target_rank": 2}),
    "bias-and-saved": (LoRAConfig, {"target_modules": ["q_proj"], "bias": "all",
                                    "modules_to_save": ["mlp"]}),
    "everything": (LoRAConfig, PATTERNS | {"bias": "all", "modules_to_save": ["norm"]}),
    "saved-norms": (LoRAConfig, {"target_modules": ["q_proj"], "modules_to_save": ["norm"]}),
    "gpt2": ("gpt2", {"target_modules": ["c_attn", "mlp.c_fc"], "bias": "all",
                      "rank_pattern": {"c_attn": 3}, "modules_to_save": ["ln_f"]}),
}  # fmt: skip
RENAMED = {"r": "rank", "lora_alpha": "alpha", "init_r": "initial_rank", "target_r": "target_rank"}


def build(kind):
    if kind == "gpt2":
        return gpt2()
    return llama(attention_bias=True, mlp_bias=True)


def our_config(kind, settings):
    if kind is AdaLoRAConfig:
        return AdaLoRAConfig(alpha=4, **settings)
    return (LoRAConfig if kind == "gpt2" else kind)(rank=2, alpha=4, **settings)


def peft_config(kind, settings):
    """The same settings by PEFT's names, built without our writer."""
    theirs = {old: new for new, old in RENAMED.items()}
    named = {theirs.get(name, name): value for name, value in settings.items()}
    named.setdefault("target_modules", "all-linear")
    if kind is AdaLoRAConfig:
        return AdaLoraConfig(lora_alpha=4, **named)
    return LoraConfig(r=2, lora_alpha=4, use_dora=kind is DoRAConfig, **named)


def peft_shaken(model, seed=1):
    """PEFT's model after random numbers were added to everything that it trains."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and "ranknum" not in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) / 4)
    return model.eval()


each_case = pytest.mark.parametrize("case", CASES)


@each_case
def test_peft_computes_the_same_with_our_file(case, tmp_path):
    kind, settings = CASES[case]
    ours = build(kind)
    inject(ours, our_config(kind, settings))
    shaken(ours).eval()
    with_adapter = logits(ours)
    save_adapter(ours, tmp_path)
    theirs = PeftModel.from_pretrained(build(kind), tmp_path).eval()
    assert not close(with_adapter, logits(build(kind)))
    assert close(with_adapter, logits(theirs))
    merge_adapters(ours)
    assert close(logits(ours), with_adapter)
    assert close(logits(ours), logits(theirs.merge_and_unload()))
    unmerge_adapters(ours)
    assert torch.equal(logits(ours), with_adapter)
    merge_adapters(ours)
    remove_adapters(ours)
    assert close(logits(ours), with_adapter)
    assert ours.state_dict().keys() == build(kind).state_dict().keys()


@each_case
def test_we_compute_the_same_with_pefts_file(case, tmp_path):
    kind, settings = CASES[case]
    theirs = get_peft_model(build(kind), peft_config(kind, settings))
    trained = {n for n, p in theirs.named_parameters() if p.requires_grad and "ranknum" not in n}
    peft_shaken(theirs).save_pretrained(tmp_path)
    # PEFT sorts the keys of patterns when it writes them, so the first that fits may be another.
    raw = json.loads((tmp_path / CONFIG).read_text())
    for name in ("rank_pattern", "alpha_pattern"):
        if raw[name]:
            raw[name] = settings[name]
    (tmp_path / CONFIG).write_text(json.dumps(raw))
    ours = build(kind)
    load_adapter(ours, tmp_path)
    expected = logits(theirs)
    assert not close(expected, logits(build(kind)))
    assert close(logits(ours.eval()), expected)
    assert len(trainable_parameters(ours)) == len(trained)
    save_adapter(ours, tmp_path / "again")
    again = PeftModel.from_pretrained(build(kind), tmp_path / "again").eval()
    assert close(logits(again), expected)


@pytest.mark.parametrize("case", ["everything", "bias", "bias-dora", "gpt2"])
def test_five_steps_of_training_have_the_same_losses(case, tmp_path):
    kind, settings = CASES[case]
    ours = build(kind)
    inject(ours, our_config(kind, settings))
    save_adapter(shaken(ours), tmp_path)
    theirs = PeftModel.from_pretrained(build(kind), tmp_path, is_trainable=True)
    config = TrainConfig(steps=5, learning_rate=1e-2, progress=False)
    losses = [train(model, [BATCH], config).losses for model in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_disabling_keeps_trained_biases_and_warns_as_in_peft(bias, tmp_path):
    settings = {"target_modules": ["q_proj"], "bias": bias}
    ours = build("llama")
    inject(ours, our_config(LoRAConfig, settings))
    save_adapter(shaken(ours).eval(), tmp_path)
    theirs = PeftModel.from_pretrained(build("llama"), tmp_path).eval()
    warned = pytest.warns(UserWarning, match="'default' trained biases of the base")
    with warned, disable_adapters(ours):
        without = logits(ours)
    warned = pytest.warns(UserWarning, match="does not produce the same output")
    with warned, theirs.disable_adapter():
        assert close(without, logits(theirs))
    assert not close(without, logits(build("llama")))


def test_an_adapter_with_trained_biases_is_the_models_only_one(tmp_path):
    for first, second in (("all", "none"), ("none", "all"), ("lora_only", "all")):
        model = build("llama")
        inject(model, LoRAConfig(2, target_modules=["q_proj"], bias=first), "a")
        other = build("llama")
        inject(other, LoRAConfig(2, target_modules=["q_proj"], bias=second), "b")
        save_adapter(shaken(other), tmp_path, "b")
        before = logits(model)
        with pytest.raises(ValueError, match="trains biases of the base"):
            load_adapter(model, tmp_path, "b")
        assert torch.equal(logits(model), before)


def test_a_file_without_its_biases_is_refused(tmp_path):
    model = build("llama")
    inject(model, LoRAConfig(2, target_modules=["q_proj"], bias="lora_only"))
    save_adapter(model, tmp_path)
    with pytest.raises(
        ValueError, match=r"q_proj\.base_layer\.bias is a bias that this model lacks"
    ):
        load_adapter(llama(), tmp_path)
    raw = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps(raw | {"bias": "all"}))
    with pytest.raises(ValueError, match="the file has no trained bias"):
        load_adapter(build("llama"), tmp_path)


def test_adapters_with_patterns_are_added_exactly():
    model = llama().eval()
    inject(model, LoRAConfig(2, rank_pattern={"q_proj": 3}, alpha_pattern={"v_proj": 40}), "a")
    inject(model, LoRAConfig(1, target_modules=["v_proj"], rank_pattern={"1.*": 2}), "b")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in adapter_layers(model).values():
            for B in layer.lora_B.values():
                B.normal_(generator=generator)
    add_weighted_adapter(model, ["a", "b"], [0.5, -2.0], "mix")
    for layer in adapter_layers(model).values():
        parts = [w * layer.delta_weight(name) for name, w in (("a", 0.5), ("b", -2.0))
                 if name in layer.configs]  # fmt: skip
        torch.testing.assert_close(layer.delta_weight("mix"), sum(parts))
    set_adapter(model, "mix")


def test_a_pattern_that_fits_no_target_is_refused_in_a_new_adapter_only(tmp_path):
    """PEFT ignores it, so a file may have one."""
    model = llama()
    with pytest.raises(ValueError, match="rank_pattern has 'q_prj', which fits none"):
        inject(model, LoRAConfig(2, target_modules=["q_proj"], rank_pattern={"q_prj": 4}))
    assert not adapter_layers(model)
    config = LoraConfig(r=2, target_modules=["q_proj"], rank_pattern={"q_prj": 4})
    peft_shaken(theirs := get_peft_model(llama(), config)).save_pretrained(tmp_path)
    load_adapter(model, tmp_path)
    assert close(logits(model.eval()), logits(theirs))


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_a_file_of_a_changed_base_says_how_to_convert_it_and_then_loads(start, tmp_path):
    config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], init_lora_weights=start)
    theirs = get_peft_model(llama(), config)
    theirs.save_pretrained(tmp_path / "start")
    peft_shaken(theirs).save_pretrained(tmp_path / "trained")
    with pytest.raises(ValueError, match="path_initial_model_for_weight_conversion=start"):
        load_adapter(llama(), tmp_path / "trained")
    expected = logits(theirs)
    theirs.save_pretrained(
        tmp_path / "converted", path_initial_model_for_weight_conversion=str(tmp_path / "start")
    )
    ours = llama()
    load_adapter(ours, tmp_path / "converted")
    assert (logits(ours.eval()) - expected).norm() <= 1e-5 * expected.norm()
