"""A smoothed model has the same outputs, and features whose maxima are as the paper says."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from course_pkg.acceleration.quantization.int8 import int8_weight
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.acceleration.quantization.smoothquant import (
    FOLDED,
    input_maxima,
    smooth,
    smoothing_scales,
)
from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.lm.decoder import Decoder
from tests.refusals import wrong_refusals
from tests.tolerance import rounding

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "vocab_size": 61,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
} | dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
INPUTS = [torch.arange(20).reshape(2, 10), torch.arange(30, 37).reshape(1, 7)]
READERS = {
    "norms": (*(f"self_attn.{name}_proj" for name in "qkv"), "mlp.gate_proj", "mlp.up_proj"),
    "v_proj": ("self_attn.o_proj",),
    "up_proj": ("mlp.down_proj",),
}


def random_model(kind=LlamaForCausalLM, **options):
    """In fp64, with norm scales of outliers and biases that are not zero."""
    torch.manual_seed(0)
    config = Qwen2Config if kind is Qwen2ForCausalLM else LlamaConfig
    model = kind(config(**SIZES | options)).eval().double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.2, 2)
                parameter[3] = -30  # an outlier feature
            else:
                parameter.normal_(std=0.3)
    return model


def decoder(**options):
    return Decoder.from_transformers(random_model(**options)).double()


MODELS = {
    "llama": random_model,
    "with biases": lambda: random_model(attention_bias=True, mlp_bias=True),
    "no shared heads": lambda: random_model(num_key_value_heads=4),
    "one shared head": lambda: random_model(num_key_value_heads=1),
    "qwen2": lambda: random_model(Qwen2ForCausalLM),
    "decoder": decoder,
    "decoder with biases": lambda: decoder(attention_bias=True, mlp_bias=True),
}


@torch.no_grad()
def logits(model, ids=INPUTS[0]):
    output = model(ids)
    return output if isinstance(output, torch.Tensor) else output.logits


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        *((name, FOLDED) for name in MODELS),
        *(("decoder with biases", (place,)) for place in FOLDED),
    ],
)
def test_the_outputs_stay_the_same_and_the_weights_do_not(name, folded):
    model = MODELS[name]()
    before = copy.deepcopy(model.state_dict())
    smoothed = smooth(model, input_maxima(model, INPUTS), 0.7, folded)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    # transformers' RMSNorm computes in fp32 whatever the dtype is: hence not 1e-12
    tolerance = 1e-11 if "decoder" in name else rounding(40, steps=2 * 4 + 1)
    error = (logits(smoothed) - logits(model)).norm() / logits(model).norm()
    assert error <= tolerance
    changed = {key for key, value in smoothed.state_dict().items() if not value.equal(before[key])}
    expected = {reader for place in folded for reader in READERS[place]}
    names = {"norms": ("input_layernorm", "post_attention_layernorm")}
    names |= {"v_proj": ("self_attn.v_proj",), "up_proj": ("mlp.up_proj",)}
    expected |= {writer for place in folded for writer in names[place]}
    parts = {key.split(".", 3 if "model." in key else 2)[-1] for key in changed}
    assert {part.rsplit(".", 1)[0] for part in parts} == expected


@pytest.mark.parametrize("alpha", [0, 0.85])
def test_maxima_after_smoothing_are_the_powers_of_their_product(alpha):
    model = decoder()
    maxima = input_maxima(model, INPUTS)
    smoothed = smooth(model, maxima, alpha, FOLDED)
    after = input_maxima(smoothed, INPUTS)
    for name in ("layers.0.mlp.down_proj", "layers.1.mlp.down_proj"):
        weights = model.get_submodule(name).weight.abs().amax(0)
        product = maxima[name].double() * weights
        columns = smoothed.get_submodule(name).weight.abs().amax(0)
        assert torch.allclose(after[name].double(), product ** (1 - alpha), rtol=rounding(64))
        assert torch.allclose(columns, product**alpha, rtol=rounding(64))
    for readers in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
        layer = "layers.1.self_attn" if "q_proj" in readers else "layers.1.mlp"
        names = [f"{layer}.{reader}" for reader in readers]
        weights = torch.cat([model.get_submodule(name).weight for name in names]).abs().amax(0)
        product = maxima[names[0]].double() * weights  # one s for all of them
        for name in names:
            assert torch.allclose(after[name].double(), product ** (1 - alpha), rtol=rounding(64))


def test_heads_that_share_a_value_share_its_scale():
    model = decoder()
    maxima = input_maxima(model, INPUTS)
    smoothed = smooth(model, maxima, 0.5, ["v_proj"])
    for layer, new in zip(model.layers, smoothed.layers, strict=True):
        ratio = (new.self_attn.o_proj.weight / layer.self_attn.o_proj.weight).view(24, 2, 2, 6)
        assert torch.allclose(ratio, ratio[:1, :, :1].expand_as(ratio))
        rows = layer.self_attn.v_proj.weight / new.self_attn.v_proj.weight  # (12, 24)
        assert torch.allclose(rows[:, 0], ratio[0, :, 0].flatten())
    x = maxima["layers.0.self_attn.o_proj"].double().view(2, 2, 6).amax(1)
    w = model.layers[0].self_attn.o_proj.weight.abs().amax(0).view(2, 2, 6).amax(1)
    ratio = smoothed.layers[0].self_attn.o_proj.weight / model.layers[0].self_attn.o_proj.weight
    assert torch.allclose(ratio[0].view(2, 2, 6)[:, 1], (x / w).sqrt())


def test_maxima_are_those_of_all_inputs_and_of_the_magnitude():
    model = decoder()
    both = input_maxima(model, iter(INPUTS))
    first, second = (input_maxima(model, [ids]) for ids in INPUTS)
    assert len(both) == 2 * 7 and all(name.startswith("layers.") for name in both)
    assert any((first[name] > second[name]).any() for name in both)
    assert any((first[name] < second[name]).any() for name in both)
    for name, value in both.items():
        assert torch.equal(value, torch.maximum(first[name], second[name]))
    with torch.no_grad():
        x = model.layers[0].input_layernorm(model.embed_tokens(INPUTS[0]))
    assert torch.equal(first["layers.0.self_attn.k_proj"], x.flatten(0, 1).abs().amax(0).float())
    other = input_maxima(random_model(), INPUTS)
    assert other.keys() == both.keys()
    assert all(torch.allclose(other[name], both[name], rtol=1e-4) for name in both)
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    assert sum(hooks) == 0


POSITIVE = st.floats(1e-3, 1e3)


@settings(max_examples=40)
@given(POSITIVE, POSITIVE, st.floats(0, 1))
def test_scales_follow_the_formula(x, w, alpha):
    scale = smoothing_scales(torch.tensor([x]), torch.tensor([w]), alpha).item()
    assert scale == pytest.approx(x**alpha / w ** (1 - alpha), rel=rounding(64))


def test_dead_features_keep_their_scale():
    zero_x = smoothing_scales(torch.tensor([0.0, 4.0]), torch.tensor([1.0, 0.0]))
    assert zero_x.tolist() == [1, 1]
    model = decoder()
    with torch.no_grad():
        model.layers[0].input_layernorm.weight[5] = 0
        model.layers[0].mlp.up_proj.weight[7] = 0
    smoothed = smooth(model, input_maxima(model, INPUTS), 0.5, FOLDED)
    assert torch.allclose(logits(smoothed), logits(model), rtol=1e-9, atol=1e-9)


def test_weights_in_bf16_stay_in_bf16():
    model = decoder().bfloat16()
    smoothed = smooth(model, input_maxima(model, INPUTS))
    assert {parameter.dtype for parameter in smoothed.parameters()} == {torch.bfloat16}


def one(value):
    return torch.tensor([float(value)])


def test_bad_arguments_are_refused():
    refused = [
        (lambda: smoothing_scales(one(1), one(1), 1.1), ValueError, "alpha must be from 0 to 1"),
        (lambda: smoothing_scales(one(1), one(1), math.nan), ValueError, "alpha must be from 0 to"),
        (lambda: smoothing_scales(one(1), one(1), "0.5"), TypeError, "alpha must be a number"),
        (lambda: smoothing_scales(one(1), torch.ones(2)), ValueError, "do not match"),
        (lambda: smoothing_scales(one(-1), one(1)), ValueError, "the maxima of the inputs must"),
        (lambda: smoothing_scales(one(1), one("nan")), ValueError, "the maxima of the weights m"),
        (lambda: input_maxima(nn.Linear(2, 2), INPUTS), TypeError, "Decoder, got Linear"),
        (lambda: input_maxima(decoder(), []), ValueError, "there are no calibration inputs"),
        (lambda: smooth(nn.Linear(2, 2), {}), TypeError, "expected one of LlamaForCausalLM"),
        (lambda: smooth(decoder(), {}), ValueError, "maxima has no layers.0.self_attn.q_proj"),
        (lambda: smooth(decoder(), {}, folded=["o_proj"]), ValueError, "folded must be one of nor"),
    ]
    assert not wrong_refusals(refused)


def test_a_model_with_adapters_or_quantized_layers_is_refused():
    model = decoder().float()
    maxima = input_maxima(model, INPUTS)
    inject(model, LoRAConfig(rank=2, target_modules=("up_proj",)))
    with pytest.raises(TypeError, match=r"mlp.up_proj is a LoRALinear; smooth the model without"):
        smooth(model, maxima)
    layer = model.layers[0].self_attn
    layer.q_proj = QuantizedLinear(int8_weight(layer.q_proj.weight))
    with pytest.raises(TypeError, match=r"self_attn.q_proj is quantized; smooth the model"):
        smooth(model, maxima)
