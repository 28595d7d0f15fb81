"""What a file says of its base: names that hold elsewhere, and the fewest targets."""

import json
import random
from pathlib import Path

import pytest
import torch
from torch import nn

from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.combining import add_weighted_adapter
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.injection import adapter_layers, inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.methods import adapt, save
from course_pkg.adapters.prompts import PromptTuningConfig
from course_pkg.adapters.targets import matches, shortest_targets
from course_pkg.lm import smollm2
from course_pkg.lm.load import load

CONFIG = "adapter_config.json"


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


@pytest.mark.parametrize("seed", range(30))
def test_the_endings_are_exact_and_the_fewest(seed):
    """Against all sets of endings, on random trees of names."""
    choose = random.Random(seed)
    names = sorted({".".join(choose.choices("abc", k=choose.randint(1, 3))) for _ in range(8)})
    chosen = [name for name in names if choose.random() < 0.5] or names[:1]
    others = [name for name in names if name not in chosen]
    found = shortest_targets(chosen, others)
    assert [name for name in names if matches(name, found)] == chosen
    if isinstance(found, list):
        endings = {name.split(".", k)[-1] for name in chosen for k in range(3)}
        exact = [e for e in endings if not any(matches(name, [e]) for name in others)]
        # Removing any ending, or replacing two by one, leaves a name out.
        for one in found:
            assert not all(matches(n, [e for e in found if e != one]) for n in chosen)
            for other in set(found) - {one}:
                rest = [e for e in found if e not in (one, other)]
                assert not any(all(matches(n, [*rest, e]) for n in chosen) for e in exact)


@pytest.mark.model
def test_an_adapter_for_the_courses_model_names_it(tmp_path):
    model = load().model
    inject(model, LoRAConfig(1))
    config = written(model, tmp_path)
    assert config["base_model_name_or_path"] == "smollm2-135m"
    assert len(config["target_modules"]) == 7
    assert str(Path.home()) not in (tmp_path / CONFIG).read_text()
