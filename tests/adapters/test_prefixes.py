"""Prefix tuning: attention worked by hand, the reparametrization, grouped heads, bad input."""

import json
import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from course_pkg.adapters.injection import trainable_parameters
from course_pkg.adapters.methods import adapt, load, save
from course_pkg.adapters.prefixes import CacheShape, PrefixTuningConfig, cache_shape
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train
from tests.adapters.builders import CONFIG, WEIGHTS, build, edit_config
from tests.parity.small_models import BATCH, logits
from tests.tables import each_row

MLP = PrefixTuningConfig(4, reparametrize=True, hidden_size=9)


def test_a_layers_output_is_attention_over_the_prefix_and_the_text():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=4, intermediate_size=8, num_hidden_layers=1, vocab_size=8, num_attention_heads=1
    )
    model = adapt(LlamaForCausalLM(config).eval(), PrefixTuningConfig(2))
    prefix = model.encoders["default"]()  # a row: the key, then the value
    K = prefix[:, :4]
    V = prefix[:, 4:]
    attention = model.base.model.layers[0].self_attn
    seen = {}
    attention.register_forward_hook(
        lambda _, args, kwargs, out: seen.update(x=kwargs["hidden_states"], y=out[0]),
        with_kwargs=True,
    )
    with torch.no_grad():
        model(torch.tensor([[3]]))
    x = seen["x"][0, 0]
    # One token at position 2: q and k are rotated by the same angle, so q·k is unchanged; the
    # prefix's keys are not rotated.
    cos, sin = model.base.model.rotary_emb(x, torch.tensor([[2]]))
    rotate = lambda z: z * cos[0, 0] + torch.cat([-z[2:], z[:2]]) * sin[0, 0]  # noqa: E731
    q = attention.q_proj(x)
    k = attention.k_proj(x)
    v = attention.v_proj(x)
    scores = torch.cat([K @ rotate(q), (q @ k)[None]]) / math.sqrt(4)
    expected = attention.o_proj(scores.softmax(0) @ torch.cat([V, v[None]]))
    assert torch.allclose(seen["y"][0, 0], expected, atol=1e-6)


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
