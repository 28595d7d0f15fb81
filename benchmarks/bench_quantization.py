"""NF4 and QLoRA: our torch code and bitsandbytes', with peft for the training step."""

import copy
from collections.abc import Iterator

import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from benchmarks.bench_lora import ALPHA, DROPOUT, RANK, build_model, training_step
from benchmarks.compare import Comparison, compare_memory, compare_times
from course_pkg.acceleration.quantization.blockwise import quantize
from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.qlora import quantize_model

LIMIT, LIMIT_BACK, LIMIT_STEP, LIMIT_LOSS = 1.5, 4.0, 1.15, 1.0001
ROWS, COLUMNS, BLOCK = 2048, 2048, 64


def measure(seconds: float = 60.0) -> Iterator[Comparison]:
    """Time to quantize and dequantize one weight; time, peak memory and loss of a QLoRA step."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    yield from _one_weight(seconds / 3, device)
    yield from _training(seconds / 3, device)


def _one_weight(seconds: float, device: torch.device) -> Iterator[Comparison]:
    weight = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)).to(device)
    quantized = quantize(weight, "nf4", BLOCK)
    options = {"blocksize": BLOCK, "quant_type": "nf4", "compress_statistics": True}
    packed, state = bnb.functional.quantize_4bit(weight, **options)
    if device.type == "cpu" and not torch.equal(quantized.codes, packed.view(-1)):
        raise RuntimeError("the codes differ, so comparing times makes no sense")
    what = f"{ROWS} × {COLUMNS} in NF4, blocks of {BLOCK}, double quantization, {device.type}"
    yield compare_times(
        f"quantize {what}",
        lambda: quantize(weight, "nf4", BLOCK),
        lambda: bnb.functional.quantize_4bit(weight, **options),
        seconds=seconds,
        limit=LIMIT,
    )
    yield compare_times(
        f"dequantize {what}",
        quantized.dequantize,
        lambda: bnb.functional.dequantize_4bit(packed, state),
        seconds=seconds,
        limit=LIMIT_BACK,
    )


def _training(seconds: float, device: torch.device) -> Iterator[Comparison]:
    name, model = build_model()
    ours, theirs = model, _quantized_by_bitsandbytes(copy.deepcopy(model), device)
    quantize_model(ours)
    inject(ours, LoRAConfig(RANK, ALPHA, DROPOUT))
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=DROPOUT, target_modules="all-linear")
    models = [each.to(device).train() for each in (ours, get_peft_model(theirs, config))]
    batch, length = (4, 512) if device.type == "cuda" else (1, 64)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (batch, length), generator=generator)
    tokens = tokens.to(device)
    what = f"QLoRA step, {name}, rank {RANK}, {batch} × {length} tokens, {device.type}"
    losses = [_loss(each, tokens) for each in models]  # adapters have no effect yet
    steps = [training_step(each, tokens) for each in models]
    ratio = max(losses[0] / losses[1], losses[1] / losses[0])
    yield compare_times(what, *steps, seconds=seconds, limit=LIMIT_STEP)
    yield compare_memory(f"{what}: peak above weights", *steps, limit=LIMIT_STEP)
    yield Comparison(f"{what}: loss", "nats", *losses, ratio, LIMIT_LOSS)


def _quantized_by_bitsandbytes(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with bitsandbytes' NF4 layers in place of all nn.Linear but the output head."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and module is not model.get_output_embeddings():
            layer = bnb.nn.Linear4bit(
                module.in_features, module.out_features, module.bias is not None, quant_type="nf4"
            )
            layer.weight = bnb.nn.Params4bit(module.weight.data, quant_type="nf4", module=layer)
            layer.bias = module.bias
            model.set_submodule(name, layer.to(device))
    model.is_loaded_in_4bit = True  # PEFT then uses its layers for bitsandbytes
    return model


def _loss(model: nn.Module, tokens: torch.Tensor) -> float:
    model.eval()
    with torch.enable_grad():  # without it, bitsandbytes may compute in bf16 on a CPU
        vectors = model.get_input_embeddings()(tokens).detach().requires_grad_()
        loss = model(inputs_embeds=vectors, labels=tokens, use_cache=False).loss.item()
    model.train()
    return loss
