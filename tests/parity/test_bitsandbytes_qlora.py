"""A model in our NF4 has the logits of one in bitsandbytes', and with LoRA the same losses."""

import copy

import bitsandbytes as bnb
import pytest
import torch
from peft import PeftModel
from torch import nn

from course_pkg.adapters.adapter_io import save_adapter
from course_pkg.adapters.injection import inject, trainable_parameters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.qlora import quantize_model
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load
from tests.parity.small_models import BATCH, EQUAL, FOUR_HEADS, TOKENS, error, llama, logits


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
    model.is_loaded_in_4bit = True  # so that PEFT uses its layers for bitsandbytes
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


def same_losses(model, batch, steps, folder):
    """The losses of our QLoRA, and of PEFT's with bitsandbytes from the same adapter file."""
    theirs = quantized_by_bitsandbytes(copy.deepcopy(model))
    ours = model
    quantize_model(ours)
    inject(ours, LoRAConfig(rank=4, alpha=8, target_modules="all-linear"))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trainable_parameters(ours).values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) / 100)
    save_adapter(ours, folder)
    theirs = PeftModel.from_pretrained(theirs, folder, is_trainable=True)
    kinds = {type(module).__module__ for module in theirs.modules()}
    assert "peft.tuners.lora.bnb" in kinds
    config = TrainConfig(steps=steps, learning_rate=5e-3, progress=False)
    return [train(each, [batch], config).losses for each in (ours, theirs)]


def test_twenty_steps_with_lora_have_the_same_losses(tmp_path):
    ours, theirs = same_losses(small_llama(), BATCH, 20, tmp_path)
    assert ours == pytest.approx(theirs, abs=1e-3) and len(ours) == 20
    assert ours[-1] < ours[0] - 0.1


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.exhaustive
def test_smollm2_has_the_same_logits_and_losses(tmp_path):
    model, tokenizer = load("smollm2-135m")
    tokens = tokenizer("QLoRA trains adapters on a model in four bits.", return_tensors="pt")
    batch = {"input_ids": tokens.input_ids, "labels": tokens.input_ids}
    ours = copy.deepcopy(model)
    theirs = quantized_by_bitsandbytes(copy.deepcopy(model))
    quantize_model(ours)
    pair = [logits(each.eval(), tokens.input_ids) for each in (ours, theirs)]
    assert error(*pair) <= 1e-5
    del ours, theirs
    losses = same_losses(model, batch, 3, tmp_path)
    assert losses[0] == pytest.approx(losses[1], abs=1e-3) and losses[0][-1] < losses[0][0]
