"""Random configurations: our adapter and PEFT's compute the same, by files in both directions."""

import json
import random

import pytest
import torch
from peft import AdaLoraConfig, IA3Config, LoraConfig, PeftModel, get_peft_model

from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.injection import adapter_layers, merge_adapters, unmerge_adapters
from tests.parity.small_models import EQUAL, close, error, logits, shaken, small

LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
GPT2 = ["c_attn", "c_fc", "attn.c_proj", "mlp.c_proj"]
KEYS = [r".*\.0\..*", "{}", "^model.layers.1.*{}", r"1\.\w+\.{}", "({}|x)", "no_such"]


def pattern(choose, targets, values):
    keys = choose.sample(KEYS, choose.randint(0, 2))
    return {key.format(choose.choice(targets)): choose.choice(values) for key in sorted(keys)}


def random_config(choose, kind):
    """PEFT's config of a random method with random settings."""
    leaves = GPT2 if kind == "gpt2" else LLAMA
    targets = sorted(choose.sample(leaves, choose.randint(1, len(leaves))))
    norm = "ln_f" if kind == "gpt2" else "norm"
    saved = choose.choice([None, None, [norm], ["lm_head"], ["0.mlp"], [norm, "head"]])
    method = choose.choice(["lora", "lora", "dora", "adalora", "ia3"])
    if method == "ia3":
        inner = [t for t in targets if t in ("down_proj", "mlp.c_proj")]
        return IA3Config(target_modules=targets, feedforward_modules=inner, modules_to_save=saved)
    shared = {
        "target_modules": choose.choice([targets, "all-linear"]),
        "modules_to_save": saved,
        "lora_alpha": choose.choice([1, 2.5, 4]),
        "bias": choose.choice(["none", "none", "all", "lora_only"]),
    }
    if method == "adalora":
        return AdaLoraConfig(init_r=3, target_r=2, total_step=9, **shared)
    return LoraConfig(
        r=choose.randint(1, 4),
        use_rslora=choose.random() < 0.3,
        use_dora=method == "dora",
        rank_pattern=pattern(choose, leaves, [1, 2, 5]),
        alpha_pattern=pattern(choose, leaves, [1, 3, 0.5]),
        **shared,
    )


def sorted_patterns(config):
    """PEFT writes the patterns sorted by key; so are these, or the file would mean another one."""
    for name in ("rank_pattern", "alpha_pattern"):
        if getattr(config, name, None):
            setattr(config, name, dict(sorted(getattr(config, name).items())))
    return config


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(s, marks=pytest.mark.exhaustive) for s in range(10, 120))]
)
def test_outputs_are_equal_both_ways_and_merged(seed, tmp_path):
    choose = random.Random(seed)
    kind = choose.choice(["llama", "bias", "gpt2"])
    config = sorted_patterns(random_config(choose, kind))
    theirs = shaken(get_peft_model(small(kind), config), seed).eval()
    expected = logits(theirs)
    theirs.save_pretrained(tmp_path / "theirs")

    ours = small(kind).eval()
    load_adapter(ours, tmp_path / "theirs")
    assert error(expected, logits(small(kind))) > 1e-4
    assert close(logits(ours), expected)
    save_adapter(ours, tmp_path / "ours")
    again = PeftModel.from_pretrained(small(kind), tmp_path / "ours").eval()
    assert close(logits(again), expected)
    assert sorted(set(again.targeted_module_names)) == sorted(set(theirs.targeted_module_names))

    merge_adapters(ours)
    again.merge_adapter()
    assert error(logits(ours), logits(again)) <= 2 * EQUAL
    save_adapter(ours, tmp_path / "merged")
    unmerge_adapters(ours)
    assert close(logits(ours), expected)
    last = small(kind).eval()
    load_adapter(last, tmp_path / "merged")
    assert torch.equal(logits(last), logits(ours))
    assert adapter_layers(last).keys() == adapter_layers(ours).keys()
    files = [
        json.loads((tmp_path / f / "adapter_config.json").read_text()) for f in ("ours", "merged")
    ]
    assert files[0] == files[1]
