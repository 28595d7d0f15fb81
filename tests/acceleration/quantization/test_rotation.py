"""The outputs of a rotated model are those of the original; its weights are others."""

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from course_pkg.acceleration.quantization.int8 import int8_weight
from course_pkg.acceleration.quantization.layerwise import EachWeight, quantize_layers
from course_pkg.acceleration.quantization.rotation import random_orthogonal, rotate_residual_stream
from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig
from tests.acceleration.quantization import examples
from tests.tolerance import rounding

SIZES = examples.SIZES | {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3}
TOKENS = torch.arange(40).reshape(2, 20)


def random_llama(**settings):
    """A Llama whose norm scales and biases are not the initial ones."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, **settings)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) / 2)
    return model


def logits(model, tokens=TOKENS):
    with torch.no_grad():
        return model(input_ids=tokens).logits


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
    ],
)
def test_the_outputs_stay_the_same_and_the_weights_do_not(settings):
    model = random_llama(**settings)
    before = copy.deepcopy(model.state_dict())
    rotated = rotate_residual_stream(model)
    assert torch.allclose(logits(rotated), logits(model), atol=1e-4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for name, module in rotated.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            assert not torch.allclose(module.weight, model.get_submodule(name).weight, atol=1e-2)
        elif name.endswith("norm"):
            assert torch.equal(module.weight, torch.ones(48))
    assert not rotated.config.tie_word_embeddings
    assert rotated.lm_head.weight is not rotated.get_input_embeddings().weight


def test_the_layers_of_a_rotated_model_are_rotations_of_the_original_ones():
    model = random_llama()
    rotated = rotate_residual_stream(model, seed=3)
    Q = random_orthogonal(48, seed=3).float()
    embedding, written = (m.get_input_embeddings().weight for m in (rotated, model))
    assert (embedding - written @ Q).norm() <= rounding(48) * written.norm()
    old, new = (m.model.layers[1].mlp.down_proj.weight for m in (model, rotated))
    assert (new - Q.T @ old).norm() <= rounding(48) * old.norm()


def test_the_matrix_is_orthogonal_and_depends_on_the_seed():
    for size in (1, 2, 97):
        Q = random_orthogonal(size, seed=size)
        assert torch.allclose(Q @ Q.T, torch.eye(size, dtype=torch.float64), atol=1e-12)
    assert torch.equal(random_orthogonal(9), random_orthogonal(9))
    assert not torch.allclose(random_orthogonal(9), random_orthogonal(9, seed=1))


def test_another_model_is_refused():
    with pytest.raises(TypeError, match="expected a LlamaForCausalLM, got Linear"):
        rotate_residual_stream(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, got -1"):
        rotate_residual_stream(random_llama(), seed=-1)
    quantized = random_llama()
    quantize_layers(quantized, EachWeight(int8_weight))
    with pytest.raises(TypeError, match=r"q_proj is a QuantizedLinear, not a plain Linear: rotate"):
        rotate_residual_stream(quantized)
    adapted = random_llama()
    inject(adapted, LoRAConfig(rank=2, target_modules=("down_proj",)))
    with pytest.raises(TypeError, match=r"down_proj is a LoRALinear, not a plain Linear: rotate"):
        rotate_residual_stream(adapted)
