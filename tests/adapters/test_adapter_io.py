"""Adapters on disk: round trips, and folders that are damaged, unsupported or for another model."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from course_pkg.adapters import adapter_io
from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.combining import add_weighted_adapter
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.injection import adapter_layers, inject, set_adapter
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.methods import adapt, save
from course_pkg.adapters.prompts import PromptTuningConfig
from course_pkg.lm import smollm2
from course_pkg.lm.load import load

from ..parity.small_models import logits

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def tiny_adapted(config, name="default", seed=0):
    model = load("tiny").model
    inject(model, config, name)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in adapter_layers(model).values():
            B = layer.lora_B[name]
            B.copy_(0.05 * torch.randn(B.shape, generator=generator))
    return model


@pytest.fixture
def saved(tmp_path):
    """A folder with a valid adapter for q_proj and v_proj."""
    save_adapter(tiny_adapted(LoRAConfig(rank=2, target_modules=["q_proj", "v_proj"])), tmp_path)
    return tmp_path


def edit_config(folder, **changes):
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    "config",
    [
        LoRAConfig(rank=3, alpha=5.5, dropout=0.25),
        LoRAConfig(rank=4, use_rslora=True, target_modules=["q_proj", "down_proj"]),
        LoRAConfig(rank=1, target_modules=r".*\.1\..*(q|v)_proj"),
        LoRAConfig(rank=2, target_modules=["lm_head"]),
    ],
)
def test_a_saved_adapter_loads_bit_for_bit_under_any_name(config, tmp_path):
    model = tiny_adapted(config, "first")
    save_adapter(model, tmp_path / "new" / "folder", "first")
    other = load("tiny").model
    loaded = load_adapter(other, tmp_path / "new" / "folder", "second")
    assert torch.equal(logits(other), logits(model))
    assert loaded.scaling == config.scaling and loaded.dropout == config.dropout
    if config.target_modules != "all-linear":
        assert loaded == config


def test_several_adapters_are_loaded_onto_one_model(tmp_path):
    outputs = {}
    for seed, name in enumerate("ab"):
        model = tiny_adapted(LoRAConfig(rank=2), seed=seed)
        save_adapter(model, tmp_path / name)
        outputs[name] = logits(model)
    together = load("tiny").model
    for name in "ab":
        load_adapter(together, tmp_path / name, name)
    for name in "ab":
        set_adapter(together, name)
        assert torch.equal(logits(together), outputs[name])
    with pytest.raises(ValueError, match="already has an adapter 'a'"):
        load_adapter(together, tmp_path / "a", "a")


def test_a_weighted_sum_can_be_saved(tmp_path):
    model = tiny_adapted(LoRAConfig(rank=2, target_modules=["q_proj"]), "a")
    inject(model, LoRAConfig(rank=1, target_modules=["v_proj"]), "b")
    add_weighted_adapter(model, ["a", "b"], [0.5, 2.0], "mix")
    set_adapter(model, "mix")
    save_adapter(model, tmp_path, "mix")
    other = load("tiny").model
    load_adapter(other, tmp_path)
    assert torch.equal(logits(other), logits(model))


def test_saving_again_replaces_the_files_and_others_can_read_them(saved):
    old = os.umask(0o022)
    try:
        model = tiny_adapted(LoRAConfig(rank=5, target_modules=["o_proj"]))
        save_adapter(model, saved)
    finally:
        os.umask(old)
    assert sorted(path.name for path in saved.iterdir()) == [CONFIG, WEIGHTS]
    assert {path.stat().st_mode & 0o777 for path in saved.iterdir()} == {0o644}
    other = load("tiny").model
    load_adapter(other, saved)
    assert torch.equal(logits(other), logits(model))


def test_the_files_use_pefts_names(saved):
    tensors = load_file(saved / WEIGHTS)
    assert sorted(tensors) == sorted(
        f"base_model.model.model.layers.{layer}.self_attn.{name}_proj.lora_{part}.weight"
        for layer in range(2)
        for name in "qv"
        for part in "AB"
    )
    config = json.loads((saved / CONFIG).read_text())
    assert config["peft_type"] == "LORA" and config["r"] == 2 and config["bias"] == "none"
    assert config["target_modules"] == ["q_proj", "v_proj"]


def test_the_error_for_saving_an_unknown_adapter_lists_the_adapters(tmp_path):
    model = tiny_adapted(LoRAConfig(rank=1), "law")
    with pytest.raises(ValueError, match=r"no adapter 'default'; its adapters are \['law'\]"):
        save_adapter(model, tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"layers_to_transform": [0]},
        {"exclude_modules": ["q_proj"]},
        {"lora_bias": True},
        {"init_lora_weights": "pissa"},
        {"peft_type": "OFT"},
        {"a_future_setting": True},
    ],
)
def test_an_unsupported_setting_is_refused_by_name(saved, change):
    edit_config(saved, **change)
    model = load("tiny").model
    (key,) = change
    with pytest.raises(ValueError, match=f"not implemented here: {key}="):
        load_adapter(model, saved)
    assert not adapter_layers(model)


@pytest.mark.parametrize(
    "change",
    [
        {"r": 0},
        {"r": "8"},
        {"lora_alpha": None},
        {"lora_dropout": 2},
        {"r": 2.5},
        {"use_rslora": "false"},
        {"bias": "some"},
        {"rank_pattern": {"q_proj": 0}},
        {"rank_pattern": {"(q_proj": 4}},
        {"alpha_pattern": ["q_proj"]},
        {"alpha_pattern": {"q_proj": float("nan")}},
    ],
)
def test_an_invalid_configuration_is_refused(saved, change):
    edit_config(saved, **change)
    with pytest.raises(ValueError, match=CONFIG):
        load_adapter(load("tiny").model, saved)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 100_000, "null", '{"r": 8}', '{"peft_type": "LORA"}']
)
def test_a_damaged_configuration_is_refused(saved, text):
    (saved / CONFIG).write_text(text)
    with pytest.raises(ValueError, match=CONFIG):
        load_adapter(load("tiny").model, saved)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda weight: weight.fill_(float("nan")), "has NaN or infinite numbers in base_model"),
        (lambda weight: weight.to(torch.int8), "has torch.int8 in base_model"),
    ],
)
def test_numbers_that_no_adapter_can_have_are_refused(saved, change, says):
    weights = load_file(saved / WEIGHTS)
    first = next(iter(weights))
    save_file(weights | {first: change(weights[first])}, saved / WEIGHTS)
    model = load("tiny").model
    with pytest.raises(ValueError, match=says):
        load_adapter(model, saved)
    assert not adapter_layers(model)


@pytest.mark.parametrize("keep", [0, 4, 100, 1500])
def test_a_truncated_weights_file_is_refused(saved, keep):
    whole = (saved / WEIGHTS).read_bytes()
    assert len(whole) > keep
    (saved / WEIGHTS).write_bytes(whole[:keep])
    with pytest.raises(ValueError, match="damaged or truncated"):
        load_adapter(load("tiny").model, saved)


def test_missing_files_are_named(saved, tmp_path):
    with pytest.raises(FileNotFoundError, match="not an adapter folder"):
        load_adapter(load("tiny").model, tmp_path / "nowhere")
    (saved / WEIGHTS).rename(saved / "adapter_model.bin")
    with pytest.raises(FileNotFoundError, match="is a pickle, which can run code"):
        load_adapter(load("tiny").model, saved)


def test_an_adapter_for_another_model_is_refused(saved):
    narrow = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2,
        )
    )  # fmt: skip
    q = "model.layers.0.self_attn.q_proj"
    says = rf"does not fit this LlamaForCausalLM: {q} has weights of shapes .*': \(2, 64\)"
    with pytest.raises(ValueError, match=says):
        load_adapter(narrow, saved)
    shallow = load("tiny").model
    del shallow.model.layers[1]
    with pytest.raises(
        ValueError, match=r"in this model, model\.layers\.1\.self_attn\.q_proj is missing"
    ):
        load_adapter(shallow, saved)
    assert not adapter_layers(narrow) and not adapter_layers(shallow)


def test_a_module_of_the_users_own_is_called_a_model(saved):
    class _Private(torch.nn.Module):
        pass

    with pytest.raises(ValueError, match="does not fit this model: in this model, "):
        load_adapter(_Private(), saved)


def test_weights_and_configuration_must_agree(saved):
    edit_config(saved, r=3)
    with pytest.raises(ValueError, match=r"expected .*\(3, 64\).*\(64, 3\)"):
        load_adapter(load("tiny").model, saved)
    edit_config(saved, r=2, target_modules=["q_proj", "v_proj", "o_proj"])
    with pytest.raises(
        ValueError, match=r"layers\.0\.self_attn\.o_proj has no weights in the file"
    ):
        load_adapter(load("tiny").model, saved)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda t: t.pop(sorted(t)[0]), r"expected .*lora_A\.weight"),
        (
            lambda t: t.update({"base_model.model.lm_head.weight": torch.ones(2)}),
            r"lm_head\.weight",
        ),
        (lambda t: t.clear(), "no tensors"),
        (lambda t: t.update({"x.lora_A.weight": torch.ones(2, 2)}), r"x\.lora_A"),
    ],
)
def test_unexpected_tensors_are_refused(saved, edit, says):
    tensors = load_file(saved / WEIGHTS)
    edit(tensors)
    save_file(tensors, saved / WEIGHTS)
    with pytest.raises(ValueError, match=says):
        load_adapter(load("tiny").model, saved)


def test_fp16_adapters_on_a_16_bit_model_are_kept_in_fp32(saved):
    tensors = {name: tensor.half() for name, tensor in load_file(saved / WEIGHTS).items()}
    save_file(tensors, saved / WEIGHTS)
    model = load("tiny").model.to(torch.bfloat16)
    load_adapter(model, saved)
    layer = model.model.layers[0].self_attn.q_proj
    assert layer.lora_B["default"].dtype == torch.float32
    key = f"{adapter_io.PREFIX}model.layers.0.self_attn.q_proj.lora_B.weight"
    assert torch.equal(layer.lora_B["default"], tensors[key].float())


def test_a_path_may_be_a_string(saved):
    assert load_adapter(load("tiny").model, str(Path(saved))).rank == 2


def written(model, folder, adapter_name="default"):
    save_adapter(model, folder, adapter_name)
    return json.loads((folder / CONFIG).read_text())


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (str(smollm2.cached_folder()), "smollm2-135m"),
        ("owner/model", "owner/model"),
        ("/home/x/.cache/hub/models--owner--a-model.v2/snapshots/0123abc", "owner/a-model.v2"),
        ("../my/model", "../my/model"),
        ("/data/smollm2-135m", "/data/smollm2-135m"),
        ("", None),
    ],
)
def test_the_base_has_a_name_that_holds_on_other_machines(path, name, tmp_path):
    model = load("tiny").model
    model.config.name_or_path = path
    inject(model, LoRAConfig(2, target_modules=["q_proj"]))
    assert written(model, tmp_path)["base_model_name_or_path"] == name
    prompt = load("tiny").model
    prompt.config.name_or_path = path
    save(adapt(prompt, PromptTuningConfig(2)), tmp_path / "prompt")
    config = json.loads((tmp_path / "prompt" / CONFIG).read_text())
    assert config["base_model_name_or_path"] == name


def test_all_linear_is_written_as_seven_endings(tmp_path):
    model = load("tiny").model
    names = inject(model, LoRAConfig(2))
    targets = written(model, tmp_path)["target_modules"]
    assert targets == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    other = load("tiny").model
    load_adapter(other, tmp_path)
    assert list(adapter_layers(other)) == names


def test_a_files_with_every_name_and_another_machines_path_still_loads(tmp_path):
    model = load("tiny").model
    names = inject(model, LoRAConfig(2))
    old = {"target_modules": names, "base_model_name_or_path": "/home/x/.cache/smollm2-135m"}
    raw = written(model, tmp_path) | old
    (tmp_path / CONFIG).write_text(json.dumps(raw))
    other = load("tiny").model
    load_adapter(other, tmp_path)
    assert list(adapter_layers(other)) == names
    assert len(written(other, tmp_path)["target_modules"]) == 7


def test_a_sum_of_adapters_has_short_targets_and_given_ones_stay(tmp_path):
    model = load("tiny").model
    inject(model, LoRAConfig(1, target_modules=["self_attn.q_proj"]), "a")
    add_weighted_adapter(model, ["a", "a"], [1, 2], "sum")
    assert written(model, tmp_path / "sum", "sum")["target_modules"] == ["q_proj"]
    assert written(model, tmp_path / "a", "a")["target_modules"] == ["self_attn.q_proj"]


def test_ia3s_targets_stay_because_another_setting_repeats_them(tmp_path):
    names = ["mlp.up_proj", "layers.0.mlp.down_proj", "layers.1.mlp.down_proj"]
    model = load("tiny").model
    inject(model, IA3Config(target_modules=names, feedforward_modules=names[1:]))
    assert written(model, tmp_path)["target_modules"] == sorted(names)
    load_adapter(load("tiny").model, tmp_path)


def test_a_regex_is_written_where_no_ending_is_exact(tmp_path):
    def build():
        torch.manual_seed(0)
        inner = nn.ModuleDict({"up": nn.Embedding(2, 2), "v": nn.Linear(2, 2)})
        return nn.ModuleDict({"up": nn.Linear(2, 2), "h": inner})

    model = build()
    assert inject(model, LoRAConfig(1)) == ["up", "h.v"]
    assert written(model, tmp_path)["target_modules"] == r"up|h\.v"
    load_adapter(other := build(), tmp_path)
    assert list(adapter_layers(other)) == ["up", "h.v"]


@pytest.mark.model
def test_an_adapter_for_the_courses_model_names_it(tmp_path):
    model = load().model
    inject(model, LoRAConfig(1))
    config = written(model, tmp_path)
    assert config["base_model_name_or_path"] == "smollm2-135m"
    assert len(config["target_modules"]) == 7
    assert str(Path.home()) not in (tmp_path / CONFIG).read_text()
