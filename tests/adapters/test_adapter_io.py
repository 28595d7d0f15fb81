"""Adapters on disk: round trips, and folders that are damaged, unsupported or for another model."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.adapter_io import PREFIX, load_adapter, save_adapter
from course_pkg.adapters.combining import add_weighted_adapter
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.injection import adapter_layers, inject, set_adapter
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.methods import adapt, save
from course_pkg.adapters.prompts import PromptTuningConfig
from course_pkg.lm import smollm2
from tests.adapters.builders import CONFIG, WEIGHTS, adapted, build, edit_config, loaded
from tests.parity.small_models import llama, logits
from tests.tables import each_row

QV = {"target_modules": ["q_proj", "v_proj"]}


@pytest.fixture
def saved(tmp_path):
    """A folder with a valid adapter for q_proj and v_proj."""
    save_adapter(adapted(LoRAConfig(rank=2, **QV)), tmp_path)
    return tmp_path


def test_saving_again_replaces_the_files_and_others_can_read_them(saved):
    old = os.umask(0o022)
    try:
        model = adapted(LoRAConfig(rank=5, target_modules=["o_proj"]))
        save_adapter(model, saved)
    finally:
        os.umask(old)
    assert sorted(path.name for path in saved.iterdir()) == [CONFIG, WEIGHTS]
    assert {path.stat().st_mode & 0o777 for path in saved.iterdir()} == {0o644}
    assert torch.equal(logits(loaded(saved)), logits(model))


def test_the_error_for_saving_an_unknown_adapter_lists_the_adapters(tmp_path):
    model = adapted(LoRAConfig(rank=1), "law")
    with pytest.raises(ValueError, match=r"no adapter 'default'; its adapters are \['law'\]"):
        save_adapter(model, tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


METHODS = {
    "lora": LoRAConfig(rank=2, **QV),
    "dora": DoRAConfig(rank=2, **QV),
    "adalora": AdaLoRAConfig(9, 2, 1, **QV),
    "ia3": IA3Config(target_modules=["v_proj", "down_proj"]),
}


@each_row(
    ("method", "change", "says"),
    [
        ("lora", {"init_lora_weights": "pissa"}, "not implemented here: init_lora_weights="),
        ("lora", {"a_future_setting": True}, "not implemented here: a_future_setting="),
        ("ia3", {"lora_alpha": 2}, "not implemented here: lora_alpha=2"),
        ("lora", {"r": "8"}, "invalid setting: rank must be an integer"),
        ("lora", {"use_rslora": "false"}, "invalid setting: use_rslora must be True or False"),
        ("lora", {"rank_pattern": {"(q_proj": 4}}, r"rank_pattern: the key .* is not a regex"),
        ("lora", {"alpha_pattern": ["q_proj"]}, "alpha_pattern must be a dict"),
        ("lora", {"alpha_pattern": {"q_proj": float("nan")}}, "must be above 0 and finite"),
        ("adalora", {"target_r": 3}, "invalid setting: target_rank 3 is above initial_rank 2"),
        ("adalora", {"total_step": None}, "invalid setting: total_step must be an integer"),
        ("adalora", {"rank_pattern": {"x.lora_E": [True, True]}}, "'x', which is not a target"),
        ("ia3", {"feedforward_modules": None}, "invalid setting: feedforward_modules must be"),
        ("lora", {"r": 10**9}, r"expected .*\(1000000000, 64\)"),
        ("lora", {"target_modules": ["q"] * 100_001}, "target_modules has 100001 entries, at mos"),
        ("lora", {"modules_to_save": ["q"] * 1001}, "modules_to_save has 1001 entries, at most 10"),
        ("lora", {"r": 3}, r"expected .*\(3, 64\).*\(64, 3\)"),
        ("lora", {"target_modules": ["q_proj", "v_proj", "o_proj"]}, "o_proj has no weights in"),
        ("dora", {"use_dora": False}, "lora_magnitude_vector"),
        ("lora", {"use_dora": True}, "expected .*lora_magnitude_vector"),
        ("ia3", {"feedforward_modules": ["v_proj"]}, r"has weights of shapes .*\(32, 1\)"),
    ],
)
def test_a_changed_configuration_is_refused(method, change, says, tmp_path):
    save_adapter(adapted(METHODS[method]), tmp_path)
    edit_config(tmp_path, **change)
    model = build()
    with pytest.raises(ValueError, match=says):
        load_adapter(model, tmp_path)
    assert not adapter_layers(model)


@each_row(
    "setting",
    [
        {"target_modules": r"(.|.)*[0-9][0-9]"},
        {"rank_pattern": {r"(.|.)*[0-9][0-9]": 2}},
        {"modules_to_save": [r"(.|.)*[0-9][0-9]"]},
    ],
)
def test_a_regex_that_would_not_end_is_refused(setting, tmp_path):
    save_adapter(adapted(METHODS["lora"]), tmp_path)
    edit_config(tmp_path, **setting)
    with pytest.raises(ValueError, match=r"needs more than 0\.5 s for the name .* in a repetition"):
        loaded(tmp_path)


@each_row("missing", ["total_step", "init_r", "lora_alpha", "target_modules"])
def test_a_missing_setting_is_named(missing, tmp_path):
    save_adapter(adapted(METHODS["adalora"]), tmp_path)
    raw = json.loads((tmp_path / CONFIG).read_text())
    del raw[missing]
    (tmp_path / CONFIG).write_text(json.dumps(raw))
    with pytest.raises(ValueError, match=f"'{missing}' is missing"):
        loaded(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"r": 8}', '{"peft_type": "LORA"}'])
def test_a_damaged_configuration_is_refused(saved, text):
    (saved / CONFIG).write_text(text)
    with pytest.raises(ValueError, match=CONFIG):
        loaded(saved)


@pytest.mark.parametrize("keep", [0, 4, 1500])
def test_a_truncated_weights_file_is_refused(saved, keep):
    whole = (saved / WEIGHTS).read_bytes()
    assert len(whole) > keep
    (saved / WEIGHTS).write_bytes(whole[:keep])
    with pytest.raises(ValueError, match="damaged or truncated"):
        loaded(saved)


def test_a_whole_model_beside_an_adapter_is_refused(saved):
    build().save_pretrained(saved)
    with pytest.raises(
        ValueError, match=r"a whole model \(model\.safetensors\) beside the adapter"
    ):
        loaded(saved)


def test_missing_files_are_named(saved, tmp_path):
    with pytest.raises(FileNotFoundError, match="not an adapter folder"):
        loaded(tmp_path / "nowhere")
    (saved / WEIGHTS).rename(saved / "adapter_model.bin")
    with pytest.raises(FileNotFoundError, match="is a pickle, which can run code"):
        loaded(saved)


class _Private(nn.Module):
    pass


def shallow():
    model = build()
    del model.model.layers[1]
    return model


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (llama, r"this LlamaForCausalLM: model.layers.0.self_attn.q_proj has weights of shapes "),
        (shallow, r"in this model, model\.layers\.1\.self_attn\.q_proj is missing"),
        (_Private, "does not fit this model: in this model, "),
    ],
)
def test_an_adapter_for_another_model_is_refused(saved, make, says):
    model = make()
    with pytest.raises(ValueError, match=says):
        load_adapter(model, saved)
    assert not adapter_layers(model)


KEY = f"{PREFIX}model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda t: t[KEY].fill_(float("nan")), "has NaN or infinite numbers in base_model"),
        (lambda t: t.update({KEY: t[KEY].to(torch.int8)}), "has torch.int8 in base_model"),
        (lambda t: t.pop(KEY), r"expected .*lora_A\.weight"),
        (lambda t: t.update({f"{PREFIX}lm_head.weight": torch.ones(2)}), r"lm_head\.weight"),
        (lambda t: t.clear(), "no tensors"),
        (lambda t: t.update({"x.lora_A.weight": torch.ones(2, 2)}), r"x\.lora_A"),
    ],
)
def test_unexpected_tensors_are_refused(saved, edit, says):
    tensors = load_file(saved / WEIGHTS)
    edit(tensors)
    save_file(tensors, saved / WEIGHTS)
    model = build()
    with pytest.raises(ValueError, match=says):
        load_adapter(model, saved)
    assert not adapter_layers(model)


def test_fp16_adapters_on_a_16_bit_model_are_kept_in_fp32(saved):
    tensors = {name: tensor.half() for name, tensor in load_file(saved / WEIGHTS).items()}
    save_file(tensors, saved / WEIGHTS)
    model = build().to(torch.bfloat16)
    load_adapter(model, saved)
    A = model.model.layers[0].self_attn.q_proj.lora_A["default"]
    assert A.dtype == torch.float32 and torch.equal(A, tensors[KEY].float())


def written(model, folder, adapter_name="default"):
    save(model, folder, adapter_name)
    return json.loads((folder / CONFIG).read_text())


@each_row(
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
@each_row("config", [METHODS["lora"], PromptTuningConfig(2)])
def test_the_base_has_a_name_that_holds_on_other_machines(path, name, config, tmp_path):
    model = build()
    model.config.name_or_path = path
    assert written(adapt(model, config), tmp_path)["base_model_name_or_path"] == name


def test_all_linear_is_written_as_seven_endings_and_every_name_can_be_read(tmp_path):
    model = build()
    names = inject(model, LoRAConfig(2))
    endings = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert written(model, tmp_path)["target_modules"] == endings
    assert list(adapter_layers(loaded(tmp_path))) == names
    edit_config(tmp_path, target_modules=names)
    assert list(adapter_layers(loaded(tmp_path))) == names
    assert written(loaded(tmp_path), tmp_path)["target_modules"] == endings


def test_a_weighted_sum_is_saved_with_short_targets_and_given_ones_stay(tmp_path):
    model = adapted(LoRAConfig(rank=2, target_modules=["self_attn.q_proj"]), "a")
    inject(model, LoRAConfig(rank=1, target_modules=["v_proj"]), "b")
    add_weighted_adapter(model, ["a", "b"], [0.5, 2.0], "mix")
    set_adapter(model, "mix")
    assert written(model, tmp_path / "mix", "mix")["target_modules"] == ["q_proj", "v_proj"]
    assert torch.equal(logits(loaded(tmp_path / "mix")), logits(model))
    assert written(model, tmp_path / "a", "a")["target_modules"] == ["self_attn.q_proj"]


def test_ia3s_targets_stay_because_another_setting_repeats_them(tmp_path):
    names = ["mlp.up_proj", "layers.0.mlp.down_proj", "layers.1.mlp.down_proj"]
    model = build()
    inject(model, IA3Config(target_modules=names, feedforward_modules=names[1:]))
    assert written(model, tmp_path)["target_modules"] == sorted(names)
    loaded(tmp_path)


def test_a_regex_is_written_where_no_ending_is_exact(tmp_path):
    def make():
        torch.manual_seed(0)
        inner = nn.ModuleDict({"up": nn.Embedding(2, 2), "v": nn.Linear(2, 2)})
        return nn.ModuleDict({"up": nn.Linear(2, 2), "h": inner})

    model = make()
    assert inject(model, LoRAConfig(1)) == ["up", "h.v"]
    assert written(model, tmp_path)["target_modules"] == r"up|h\.v"
    load_adapter(other := make(), tmp_path)
    assert list(adapter_layers(other)) == ["up", "h.v"]
