"""Prefix tuning: attention worked by hand, the reparametrization, grouped heads, bad input."""

import json

import pytest
import torch
from transformers import LlamaConfig

from course_pkg.adapters.injection import trainable_parameters
from course_pkg.adapters.methods import adapt, load, save
from course_pkg.adapters.prefixes import CacheShape, PrefixTuningConfig, cache_shape
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train
from tests.adapters.builders import CONFIG, WEIGHTS, build, edit_config
from tests.parity.small_models import BATCH, logits
from tests.tables import each_row

MLP = PrefixTuningConfig(4, reparametrize=True, hidden_size=9)


def test_dropping_the_reparametrization_keeps_the_function_and_trains_on(tmp_path):
    model = adapt(build(), MLP)
    config = TrainConfig(steps=3, learning_rate=1e-2, progress=False)
    losses = train(model, [BATCH], config).losses
    before = logits(model)
    save(model, tmp_path / "before")
    model.drop_reparametrization()
    assert torch.equal(logits(model), before)
    assert {n: tuple(p.shape) for n, p in trainable_parameters(model).items()} == {
        "encoders.default.prompt_embeddings": (4, 128)
    }
    save(model, tmp_path / "after")
    for name in (CONFIG, WEIGHTS):
        assert (tmp_path / "before" / name).read_bytes() == (tmp_path / "after" / name).read_bytes()
    assert train(model, [BATCH], config).losses[-1] < losses[0]


def test_a_second_prefix_stays_frozen_when_the_reparametrization_is_dropped():
    model = adapt(build(), MLP, "first")
    adapt(model, PrefixTuningConfig(2), "second")
    model.drop_reparametrization()
    assert list(trainable_parameters(model)) == ["encoders.first.prompt_embeddings"]


def test_training_without_the_cache_of_gradient_checkpointing():
    model = adapt(build(), PrefixTuningConfig(4))
    model.base.gradient_checkpointing_enable()
    with pytest.raises(
        RuntimeError, match="gradient checkpointing drops the cache, and the prefix"
    ):
        train(model, [BATCH], TrainConfig(steps=1, progress=False))
    model.base.gradient_checkpointing_disable()
    train(model, [BATCH], TrainConfig(steps=1, progress=False))


def test_grouped_heads_are_counted_as_key_value_heads(tmp_path):
    model = adapt(build(), PrefixTuningConfig(3))  # 4 query heads, 2 key-value heads of 16
    assert cache_shape(model.config) == CacheShape(layers=2, heads=2, head_dim=16)
    save(model, tmp_path)
    settings = json.loads((tmp_path / CONFIG).read_text())
    assert (settings["num_attention_heads"], settings["token_dim"]) == (2, 32)
    edit_config(tmp_path, num_attention_heads=4, token_dim=64)
    with pytest.raises(ValueError, match="'num_attention_heads': 2}; a prefix counts key-value"):
        load(build(), tmp_path)


@each_row(
    ("name", "value"),
    [("layer_types", ["linear_attention", "full_attention"]), ("kv_lora_rank", 8)],
)
def test_models_whose_layers_cache_something_else_are_refused(name, value):
    config = LlamaConfig(num_hidden_layers=2)
    setattr(config, name, value)
    with pytest.raises(ValueError, match="keys and values of one shape in every layer"):
        cache_shape(config)


@each_row(
    ("settings", "error", "says"),
    [
        ({"reparametrize": "yes"}, TypeError, "reparametrize must be True or False"),
        ({"hidden_size": 0}, ValueError, "hidden_size must be an integer"),
        ({"init": "TEXT"}, ValueError, "init must be one of random, zero"),
    ],
)
def test_impossible_settings_are_refused(settings, error, says):
    with pytest.raises(error, match=says):
        PrefixTuningConfig(4, **settings)
