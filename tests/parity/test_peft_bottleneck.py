"""A bottleneck adapter of this package equals the one that `get_peft_model` builds."""

import copy

import pytest
import torch
from peft import PeftModel, get_peft_model
from peft.utils import PeftType

from course_pkg.adapters.bottleneck import BottleneckConfig
from course_pkg.adapters.injection import (
    adapter_layers,
    disable_adapters,
    inject,
    merge_adapters,
    trainable_parameters,
)
from course_pkg.adapters.methods import adapt, load, save
from course_pkg.adapters.peft_bottleneck import PeftBottleneckConfig, register
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load as load_model

from .small_models import BATCH, close, logits, shaken

TARGETS = ["o_proj", "down_proj"]


def build():
    return load_model("tiny").model


@pytest.fixture
def pair(tmp_path):
    """Our model and PEFT's with the same weights, by way of our file."""
    ours = shaken(adapt(build(), BottleneckConfig(size=3, target_modules=TARGETS)))
    save(ours, tmp_path / "ours")
    return ours, PeftModel.from_pretrained(build(), tmp_path / "ours", is_trainable=True)


def test_outputs_losses_and_counts_are_equal(pair):
    ours, theirs = pair
    assert close(logits(ours), logits(theirs))
    assert not close(logits(ours), logits(build()))
    with disable_adapters(ours), theirs.disable_adapter():
        assert torch.equal(logits(ours), logits(build()))
        assert torch.equal(logits(theirs), logits(build()))
    counted = sum(p.numel() for p in trainable_parameters(ours).values())
    # W_down and W_up, b_down and b_up, for two modules of width 64 in two layers.
    assert counted == theirs.get_nb_trainable_parameters()[0] == 4 * (2 * 3 * 64 + 3 + 64)
    config = TrainConfig(steps=5, learning_rate=1e-3, progress=False)
    losses = [train(model, [BATCH], config).losses for model in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] < losses[0][0]


def test_pefts_file_is_read(pair, tmp_path):
    ours, theirs = pair
    theirs.save_pretrained(tmp_path / "theirs")
    back = load(build(), tmp_path / "theirs", "other")
    assert torch.equal(logits(back), logits(ours))


def test_get_peft_model_builds_it_with_named_adapters():
    config = PeftBottleneckConfig(size=3, target_modules=TARGETS, task_type="CAUSAL_LM")
    model = get_peft_model(build(), config)
    assert torch.equal(logits(model), logits(build())), "a new adapter changes nothing"
    shaken(model)
    first = logits(model)
    model.add_adapter("second", copy.deepcopy(config))
    assert torch.equal(logits(model), first)
    model.set_adapter("second")
    assert torch.equal(logits(model), logits(build()))
    with pytest.raises(NotImplementedError, match="can't be merged"):
        model.merge_adapter()
    default = get_peft_model(build(), PeftBottleneckConfig(size=3, task_type="CAUSAL_LM"))
    assert default.targeted_module_names == model.targeted_module_names


def test_registering_again_changes_nothing():
    before = list(PeftType)
    register()
    assert list(PeftType) == before and before.count("BOTTLENECK") == 1


def test_ours_starts_without_effect_stacks_and_cannot_be_merged():
    model = build()
    inject(model, BottleneckConfig(size=2, target_modules=["o_proj"]))
    assert torch.equal(logits(model), logits(build()))
    shaken(model)
    with pytest.raises(NotImplementedError, match="a bottleneck adapter can't be merged"):
        merge_adapters(model)
    layer = adapter_layers(model)["model.layers.0.self_attn.o_proj"]
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    layer.add_adapter("second", BottleneckConfig(size=1))
    layer.set_active(["default", "second"])
    alone = layer.base(x)
    weights = layer.weights_of("default")
    z = torch.nn.functional.gelu(
        alone @ weights["bottleneck_down"].T + weights["bottleneck_down_bias"]
    )
    expected = alone + z @ weights["bottleneck_up"].T + weights["bottleneck_up_bias"]
    assert close(layer(x), expected)


@pytest.mark.parametrize("size", [0, 2.5, True, "8"])
def test_an_impossible_size_is_refused(size):
    with pytest.raises(ValueError, match="size must be an integer of at least 1"):
        BottleneckConfig(size=size)
