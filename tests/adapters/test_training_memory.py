"""The bytes that a step keeps, compared with hand counts and with gradient checkpointing."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import ModelOutput

from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.qlora import quantize_model
from course_pkg.adapters.training_memory import measure_step

TOKENS = torch.randint(61, (2, 32), generator=torch.Generator().manual_seed(0))
BATCH = {"input_ids": TOKENS, "labels": TOKENS}


class Squares(nn.Module):
    """The sum of the squares of a layer's outputs."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, use_cache):
        return ModelOutput(loss=self.layer(x).square().sum())


def llama(layers=4):
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 61}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": layers}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads)).train()


def test_a_linear_layer_by_hand():
    # 10 inputs of 64 for the gradient of W, 10 outputs of 32 for that of the square; fp32.
    cost = measure_step(Squares(nn.Linear(64, 32)), {"x": torch.randn(10, 64)})
    assert cost.weights == cost.gradients == 4 * (64 * 32 + 32)
    assert cost.saved == 4 * (10 * 64 + 10 * 32)
    assert cost.seconds > 0


def test_gradient_checkpointing_saves_memory_and_has_the_same_loss():
    model = llama()
    quantize_model(model)
    inject(model, LoRAConfig(rank=2))
    stored = measure_step(model, BATCH)
    model.activation_checkpointing_enable()
    checkpointed = measure_step(model, BATCH)
    assert checkpointed.loss == pytest.approx(stored.loss, rel=1e-6)
    assert checkpointed.saved < stored.saved / 4
    assert checkpointed.gradients == stored.gradients > 0
    # Each further layer keeps its input only: 2 · 32 tokens of 64 numbers.
    deeper = llama(layers=5)
    quantize_model(deeper)
    inject(deeper, LoRAConfig(rank=2))
    deeper.activation_checkpointing_enable()
    assert measure_step(deeper, BATCH).saved - checkpointed.saved == 4 * 2 * 32 * 64


def test_the_model_keeps_its_gradients_and_its_weights():
    model = llama(layers=1)
    model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    measure_step(model, BATCH)
    assert torch.equal(model.lm_head.weight.grad, torch.ones_like(model.lm_head.weight))
    assert model.model.norm.weight.grad is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_impossible_steps_say_why():
    with pytest.raises(ValueError, match="no parameter requires a gradient"):
        measure_step(llama().requires_grad_(False), BATCH)
    with pytest.raises(ValueError, match='the batch needs "labels"'):
        measure_step(llama(), {"input_ids": TOKENS})
    with pytest.raises(TypeError, match=r"model must be an nn\.Module"):
        measure_step("llama", BATCH)
