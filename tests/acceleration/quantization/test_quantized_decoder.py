"""A whole decoder in 8 or 4 bits: which layers, what it loses, and what stays."""

import copy

import pytest
import torch

from course_pkg.acceleration.quantization.quantized_decoder import freeze, quantize_decoder
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.load import load

IDS = torch.tensor([[5, 6, 7, 8, 9]])


@pytest.fixture(scope="module")
def decoder():
    return Decoder.from_transformers(load("tiny").model)


@pytest.mark.parametrize(
    ("weights", "block", "head"),
    [
        ("int8", "int8 weight", "int8 weight"),
        ("int4", "GGUF Q4_1", "int8 weight"),
    ],
)
def test_every_linear_layer_is_quantized_and_the_given_decoder_stays(decoder, weights, block, head):
    before = {name: tensor.clone() for name, tensor in decoder.state_dict().items()}
    quantized = quantize_decoder(decoder, weights)
    kinds = {
        name: module.quantized.describe()
        for name, module in quantized.named_modules()
        if isinstance(module, QuantizedLinear)
    }
    assert kinds.pop("lm_head") == head
    assert len(kinds) == 7 * decoder.config.layers and set(kinds.values()) == {block}
    assert not any(isinstance(module, QuantizedLinear) for module in decoder.modules())
    assert not hasattr(decoder, "lm_head")
    for name, tensor in decoder.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_head_that_is_tied_by_hand_leaves_the_given_decoder_as_it_is(decoder):
    tied = copy.deepcopy(decoder)
    vocab, hidden = tied.embed_tokens.weight.shape
    tied.lm_head = torch.nn.Linear(hidden, vocab, bias=False, device="meta")
    tied.lm_head.weight = tied.embed_tokens.weight
    quantized = quantize_decoder(tied)
    assert torch.equal(quantized(IDS), quantize_decoder(decoder)(IDS))
    assert tied.lm_head.weight is tied.embed_tokens.weight
    assert torch.equal(tied(IDS), decoder(IDS))


def test_everything_else_has_the_16_bit_type(decoder):
    quantized = quantize_decoder(decoder)
    assert quantized.embed_tokens.weight.dtype == quantized.norm.weight.dtype == torch.bfloat16
    assert quantize_decoder(copy.deepcopy(decoder).half()).norm.weight.dtype == torch.float16
    assert quantize_decoder(decoder, dtype=torch.float32).norm.weight.dtype == torch.float32
    assert quantized(IDS).dtype == torch.bfloat16


def test_what_cannot_be_quantized_is_one_clear_error(decoder):
    with pytest.raises(ValueError, match="weights must be one of int8, int4"):
        quantize_decoder(decoder, "int2")
    with pytest.raises(TypeError, match="expected a Decoder, got LlamaForCausalLM; Decoder"):
        quantize_decoder(load("tiny").model)
    with pytest.raises(ValueError, match="is quantized already"):
        quantize_decoder(quantize_decoder(decoder))
    odd = copy.deepcopy(decoder)
    odd.layers[1].mlp.up_proj = torch.nn.Linear(40, 64)
    with pytest.raises(ValueError, match=r'mlp.up_proj has rows of 40 weights, .* use "int8"'):
        quantize_decoder(odd, "int4")


@pytest.mark.parametrize("fused", [False, True])
def test_freezing_reaches_every_quantized_layer(decoder, fused):
    quantized = quantize_decoder(decoder, fused=fused)
    layers = [module for module in quantized.modules() if isinstance(module, QuantizedLinear)]
    before = quantized(IDS)
    freeze(quantized)
    assert torch.equal(quantized(IDS), before)
    frozen = [layer.quantized for layer in layers]
    for layer in layers:
        layer.weight.zero_()  # without freezing, `quantized` would be another one
    assert layers and all(a.quantized is b for a, b in zip(layers, frozen, strict=True))
