"""Every layer method equals PEFT: outputs, merging, training, and files both ways."""

import json
from functools import partial

import pytest
import torch
from peft import PeftModel

from course_pkg.adapters import peft_bottleneck  # noqa: F401 (adds the method to PEFT)
from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.bottleneck import BottleneckConfig
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.ia3 import IA3Config
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
from tests.parity.small_models import BATCH, EQUAL, close, error, logits, pair_of, shaken, small

lora = partial(LoRAConfig, rank=2, alpha=4)
dora = partial(DoRAConfig, rank=2, alpha=4)
adalora = partial(
    AdaLoRAConfig, total_step=5, initial_rank=3, target_rank=2, alpha=4, orth_reg_weight=0.0
)
PATTERNS = {
    "rank_pattern": {"q_proj": 3, r"layers\.1\.mlp\..*": 1},
    "alpha_pattern": {r"^model.layers.0.self_attn.q_proj": 5, "(k|v)_proj": 3.5, ".*_proj": 2},
}
EMBED = {"rank_pattern": {"embed_tokens": 4}, "alpha_pattern": {"embed_tokens": 1}}
ORDER = {"self_attn.q_proj": 1, "q_proj": 3, ".*": 4}
QV = ["q_proj", "v_proj"]
VD = r".*\.(v|down)_proj"
GPT2 = ["c_attn", "mlp.c_fc"]
GPT2_KVF = ["c_attn", "mlp.c_proj"]
CASES = {
    "lora-order": ("bias", lora(target_modules=QV, rank_pattern=ORDER)),
    "lora-patterns": ("bias", lora(**PATTERNS)),
    "lora-patterns-rslora": ("llama", lora(use_rslora=True, **PATTERNS)),
    "lora-wide": ("llama", LoRAConfig(rank=40)),
    "lora-regex": ("llama", lora(target_modules=r"model\.layers\.1\..*(q|v)_proj", dropout=0.3)),
    "lora-embedding": ("llama", lora(target_modules=["embed_tokens", "v_proj"], **EMBED)),
    "lora-conv1d": ("gpt2", lora()),
    "lora-rslora-bf16": ("bf16", lora(use_rslora=True)),
    "lora-biases": ("bias", lora(target_modules=["q_proj", "up_proj"], bias="lora_only")),
    "lora-all-biases": ("bias", lora(target_modules=["q_proj"], bias="all")),
    "lora-saved-head": ("llama", lora(target_modules=["q_proj"], modules_to_save=["lm_head"])),
    "lora-saved-mlp": ("bias", lora(target_modules=QV, bias="all", modules_to_save=["mlp"])),
    "lora-everything": ("bias", lora(bias="all", modules_to_save=["norm"], **PATTERNS)),
    "lora-everything-conv1d": (
        "gpt2",
        lora(target_modules=GPT2, bias="all", rank_pattern={"c_attn": 3}, modules_to_save=["ln_f"]),
    ),
    "dora": ("llama", dora()),
    "dora-patterns": ("bias", dora(**PATTERNS)),
    "dora-dropout": ("bias", dora(target_modules=VD, dropout=0.1)),
    "dora-conv1d": ("gpt2", dora(target_modules=GPT2)),
    "dora-bf16": ("bf16", dora()),
    "adalora": ("llama", adalora(dropout=0.1)),
    "adalora-conv1d": ("gpt2", adalora(target_modules=GPT2, alpha=3)),
    "adalora-bf16": ("bf16", adalora()),
    "ia3": ("llama", IA3Config()),
    "ia3-conv1d": ("gpt2", IA3Config(target_modules=GPT2_KVF, feedforward_modules=["mlp.c_proj"])),
    "ia3-bias": ("bias", IA3Config()),
    "ia3-regex": ("bias", IA3Config(target_modules=VD, feedforward_modules=r".*\.down_proj")),
    "ia3-outputs": ("llama", IA3Config(target_modules=["v_proj"], feedforward_modules=[])),
    "ia3-bf16": ("bf16", IA3Config()),
    "ia3-saved": ("llama", IA3Config(modules_to_save=["lm_head"])),
    "bottleneck": ("llama", BottleneckConfig(3, target_modules=["o_proj", "down_proj"])),
    "bottleneck-conv1d": ("gpt2", BottleneckConfig(3, target_modules=GPT2)),
}


@pytest.fixture(params=CASES)
def pair(request, tmp_path):
    """The case's name, and our model and PEFT's with the same random adapter."""
    kind, config = CASES[request.param]
    return request.param, *pair_of(partial(small, kind), config, tmp_path / "ours")


def test_outputs_are_equal_also_disabled_merged_and_removed(pair):
    name, ours, theirs = pair
    kind, config = CASES[name]
    exact = 1e-2 if kind == "bf16" else EQUAL
    # LoRA adds to the weight; the other methods also multiply it, which rounds once more.
    rounded = exact if name.startswith("lora") and kind != "bf16" else 2 * exact
    for model in (ours, theirs):
        model.eval()
    model = small(kind).eval()
    base = logits(model)
    inject(model, config)
    assert torch.equal(logits(model), base), "a new adapter changes nothing"
    with_adapter = logits(ours)
    assert error(with_adapter, logits(theirs)) <= exact
    assert error(with_adapter, base) > 2 * exact
    if config.bias == "none":
        with disable_adapters(ours):
            assert torch.equal(logits(ours), base)
    if isinstance(config, BottleneckConfig):
        with pytest.raises(NotImplementedError, match="a bottleneck adapter can't be merged"):
            merge_adapters(ours)
        return
    merge_adapters(ours)
    merge_adapters(ours)
    assert error(logits(ours), with_adapter) <= rounded
    assert error(logits(ours), logits(theirs.merge_and_unload())) <= rounded
    unmerge_adapters(ours)
    assert torch.equal(logits(ours), with_adapter)
    merge_adapters(ours)
    remove_adapters(ours)
    assert error(logits(ours), with_adapter) <= rounded and not adapter_layers(ours)
    assert ours.state_dict().keys() == small(kind).state_dict().keys()


TRAINED = ["lora-everything", "lora-conv1d", "dora-dropout", "adalora", "ia3-bias", "bottleneck"]


@pytest.mark.parametrize("pair", [*TRAINED, "lora-rslora-bf16"], indirect=True)
def test_five_steps_of_training_have_the_same_losses(pair):
    name, ours, theirs = pair
    config = TrainConfig(steps=5, learning_rate=1e-2, progress=False)
    losses = [train(model, [BATCH], config).losses for model in (ours, theirs)]
    assert losses[0] == pytest.approx(
        losses[1], rel=1e-2 if CASES[name][0] == "bf16" else 4 * EQUAL
    )
    assert losses[0][-1] < losses[0][0]


READ = ["lora-embedding", "lora-saved-mlp", "dora-patterns", "dora-bf16", "adalora-bf16"]


@pytest.mark.parametrize("pair", [*TRAINED, *READ, "ia3-regex", "ia3-saved"], indirect=True)
def test_pefts_file_is_read_and_counts_are_equal(pair, tmp_path):
    name, ours, theirs = pair
    kind, config = CASES[name]
    theirs.save_pretrained(tmp_path / "theirs")
    # PEFT sorts the keys of patterns when it writes them, so the first that fits may be another.
    path = tmp_path / "theirs" / "adapter_config.json"
    raw = json.loads(path.read_text())
    for pattern in ("rank_pattern", "alpha_pattern"):
        if raw.get(pattern):
            raw[pattern] = getattr(config, pattern)
    path.write_text(json.dumps(raw))
    back = small(kind)
    loaded = load_adapter(back, tmp_path / "theirs", "other")
    assert loaded == config or config.target_modules == "all-linear"
    assert torch.equal(logits(back.eval()), logits(ours.eval()))
    counted = sum(p.numel() for p in trainable_parameters(ours).values())
    # On a 16-bit base, PEFT's cast makes `ranknum`, a constant of the scale, a trained parameter.
    trained = [p for n, p in theirs.named_parameters() if p.requires_grad and "ranknum" not in n]
    assert counted == sum(p.numel() for p in trained)


SEVERAL = {
    "lora": LoRAConfig(rank=5, alpha=3),
    "dora": dora(target_modules=["v_proj", "down_proj"]),
    "ia3": IA3Config(),
}


@pytest.mark.parametrize("config", SEVERAL.values(), ids=SEVERAL)
def test_one_or_several_adapters_are_active_as_in_peft(config, tmp_path):
    for seed, name in enumerate("ab"):
        model = small("bias")
        inject(model, config)
        save_adapter(shaken(model, seed), tmp_path / name)
    ours = small("bias").eval()
    theirs = PeftModel.from_pretrained(small("bias"), tmp_path / "a", "a").eval()
    theirs.load_adapter(tmp_path / "b", "b")
    for name in "ab":
        load_adapter(ours, tmp_path / name, name)
    for active in (["a"], ["b"], ["b", "a"], ["a", "b"]):  # DoRA's act in turn
        set_adapter(ours, active)
        theirs.base_model.set_adapter(active)
        expected = logits(ours)
        assert close(expected, logits(theirs))
        assert {n.rpartition(".")[2] for n in trainable_parameters(ours)} == set(active)
    merge_adapters(ours)
    assert error(logits(ours), expected) <= 2 * EQUAL
    assert error(logits(ours), logits(theirs.merge_and_unload())) <= 2 * EQUAL


@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_disabling_keeps_trained_biases_and_warns_as_in_peft(bias, tmp_path):
    config = lora(target_modules=["q_proj"], bias=bias)
    ours, theirs = pair_of(partial(small, "bias"), config, tmp_path)
    warned = pytest.warns(UserWarning, match="'default' trained biases of the base")
    with warned, disable_adapters(ours):
        without = logits(ours)
    warned = pytest.warns(UserWarning, match="does not produce the same output")
    with warned, theirs.disable_adapter():
        assert close(without, logits(theirs))
    assert not close(without, logits(small("bias")))
