"""LoRA training: one step of our implementation and of PEFT's, on the same model and batch."""

import copy
from collections.abc import Iterator

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.compare import Comparison, compare_memory, compare_times
from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.lm.load import load
from course_pkg.lm.model_errors import ModelError

LIMIT = 1.05
RANK, ALPHA, DROPOUT = 8, 16, 0.05


def measure(seconds: float = 45.0) -> Iterator[Comparison]:
    """Time and peak memory of a training step: forward, backward, AdamW; all linear layers."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name, model = build_model()
    model = model.to(device).train()
    ours, theirs = model, copy.deepcopy(model)
    inject(ours, LoRAConfig(RANK, ALPHA, DROPOUT))
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=DROPOUT, target_modules="all-linear")
    theirs = get_peft_model(theirs, config)
    batch, length = (4, 512) if device.type == "cuda" else (1, 64)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (batch, length), generator=generator)
    steps = [training_step(each, tokens.to(device)) for each in (ours, theirs)]
    what = f"LoRA step, {name}, rank {RANK}, {batch} × {length} tokens, {device.type}"
    yield compare_times(what, *steps, seconds=seconds, limit=LIMIT)
    yield compare_memory(f"{what}: peak above weights", *steps, limit=LIMIT)


def build_model() -> tuple[str, nn.Module]:
    """SmolLM2, or a random model of its size where it is not installed; and its name."""
    try:
        return "SmolLM2-135M", load("smollm2-135m").model
    except ModelError:
        sizes = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536}
        heads = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
        config = LlamaConfig(**sizes, **heads, tie_word_embeddings=True)
        return "random Llama of SmolLM2-135M's size", LlamaForCausalLM(config)


def training_step(model: nn.Module, tokens: torch.Tensor):
    """A function that runs one step: forward, backward, AdamW."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-5)

    def step() -> None:
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
