"""The bottleneck adapter that this package adds to PEFT: `get_peft_model` builds it."""

import copy

import pytest
import torch
from peft import get_peft_model
from peft.utils import PeftType

from course_pkg.adapters.bottleneck import BottleneckConfig, BottleneckLinear
from course_pkg.adapters.peft_bottleneck import PeftBottleneckConfig, register
from tests.parity.small_models import close, llama, logits, shaken

TARGETS = ["o_proj", "down_proj"]


def test_get_peft_model_builds_it_with_named_adapters():
    config = PeftBottleneckConfig(size=3, target_modules=TARGETS, task_type="CAUSAL_LM")
    model = get_peft_model(llama(), config)
    assert torch.equal(logits(model), logits(llama())), "a new adapter changes nothing"
    shaken(model)
    first = logits(model)
    with model.disable_adapter():
        assert torch.equal(logits(model), logits(llama()))
    model.add_adapter("second", copy.deepcopy(config))
    assert torch.equal(logits(model), first)
    model.set_adapter("second")
    assert torch.equal(logits(model), logits(llama()))
    with pytest.raises(NotImplementedError, match="can't be merged"):
        model.merge_adapter()
    default = get_peft_model(llama(), PeftBottleneckConfig(size=3, task_type="CAUSAL_LM"))
    assert default.targeted_module_names == model.targeted_module_names


def test_registering_again_changes_nothing():
    before = list(PeftType)
    register()
    assert list(PeftType) == before and before.count("BOTTLENECK") == 1


def test_the_output_of_two_active_adapters_by_definition():
    layer = BottleneckLinear(torch.nn.Linear(6, 4), BottleneckConfig(size=2))
    shaken(layer)
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    layer.add_adapter("new", BottleneckConfig(size=1))
    layer.set_active(["default", "new"])
    alone = layer.base(x)
    down, down_bias, up, up_bias = layer.weights_of("default").values()
    z = torch.nn.functional.gelu(alone @ down.T + down_bias)
    assert close(layer(x), alone + z @ up.T + up_bias)


@pytest.mark.parametrize("size", [0, True])
def test_an_impossible_size_is_refused(size):
    with pytest.raises(ValueError, match="size must be an integer of at least 1"):
        BottleneckConfig(size=size)
