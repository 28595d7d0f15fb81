"""A model in our NF4 has the logits and the gradients of one in bitsandbytes'."""

import copy

import bitsandbytes as bnb
import pytest
import torch
from torch import nn

from course_pkg.adapters.qlora import quantize_model
from tests.parity.small_models import EQUAL, FOUR_HEADS, TOKENS, error, llama, logits


def small_llama():
    sizes = FOUR_HEADS | {"hidden_size": 64, "intermediate_size": 192, "vocab_size": 97}
    return llama(sizes, attention_bias=True)


def quantized_by_bitsandbytes(model, book="nf4", double=True, dtype=torch.float32):
    """The model with bitsandbytes' layers in place of all nn.Linear but the head."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and module is not model.get_output_embeddings():
            layer = bnb.nn.Linear4bit(
                module.in_features,
                module.out_features,
                module.bias is not None,
                compute_dtype=dtype,
                compress_statistics=double,
                quant_type=book,
            )
            layer.weight = bnb.nn.Params4bit(
                module.weight.data, quant_type=book, compress_statistics=double, module=layer
            ).to("cpu")
            layer.bias = module.bias
            # On processors with AVX512-BF16 it would compute in bf16 in evaluation mode.
            layer.support_avx512bf16_for_cpu = False
            model.set_submodule(name, layer)
    return model


@pytest.mark.parametrize("double", [False, True], ids=["fp32 scales", "double"])
@pytest.mark.parametrize("book", ["nf4", "fp4"])
def test_logits_and_gradients_are_equal(book, double):
    plain = small_llama().eval()
    ours = copy.deepcopy(plain)
    quantize_model(ours, book, double=double)
    theirs = quantized_by_bitsandbytes(copy.deepcopy(plain), book, double)
    assert error(logits(ours), logits(theirs)) <= EQUAL
    assert error(logits(ours), logits(plain)) > 1e-2
    gradients = []
    for model in (ours, theirs):
        vectors = model.get_input_embeddings()(TOKENS).detach().requires_grad_()
        model(inputs_embeds=vectors, labels=TOKENS).loss.backward()
        gradients.append(vectors.grad)
    assert error(*gradients) <= 4 * EQUAL  # back through every layer
    assert all(p.grad is None for p in ours.parameters() if not p.is_floating_point())


def test_a_compute_dtype_of_bf16_gives_the_same_logits():
    plain = small_llama().eval()
    ours = copy.deepcopy(plain)
    quantize_model(ours, compute_dtype=torch.bfloat16)
    theirs = quantized_by_bitsandbytes(copy.deepcopy(plain), dtype=torch.bfloat16)
    full = copy.deepcopy(plain)
    quantize_model(full)
    # bf16 rounds at 2^-9, so the two may differ by as much as each differs from fp32.
    assert error(logits(ours), logits(theirs)) <= 2 * error(logits(theirs), logits(full))
