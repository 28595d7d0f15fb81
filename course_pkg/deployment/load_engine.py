"""The engine of `course serve`: model, weights, adapters."""

import os
from pathlib import Path

import torch

from course_pkg.acceleration.quantization.gptq_files import is_gptq, load_gptq
from course_pkg.acceleration.quantization.quantized_decoder import FORMATS
from course_pkg.deployment.api_errors import ServeError
from course_pkg.lm import smollm2
from course_pkg.lm.answer_end import stop_at_answer_end
from course_pkg.lm.load import LoadedModel, load, load_tokenizer, pick_device, stored_dtype
from course_pkg.serving.engine import Engine
from course_pkg.serving.lora_rows import check_adapter

# What a format costs SmolLM2: the change of the loss, and the most probable tokens that change, as
# recorded in course_pkg/data/experiments/quantized_smollm2.json.
MEASURED = {"int8": ("+0.028 ± 0.009", "7.4%"), "int4": ("+0.051 ± 0.011", "4.9%")}
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16")}


def weights_dtype(dtype: str, model: str, device: str | None) -> torch.dtype:
    """The type of the weights. "auto": float32 on a CPU, otherwise the one of the model's files."""
    if dtype in DTYPES:
        return DTYPES[dtype]
    if dtype != "auto":
        raise ServeError(f"--dtype {dtype}: expected auto, {', '.join(DTYPES)}")
    if model == "tiny" or pick_device(device).type == "cpu":
        return torch.float32
    return stored_dtype(model)


def load_engine(
    model: str,
    adapters: dict[str, Path],
    device: str | None,
    cache_gb: float,
    running: int,
    dtype: str = "auto",
    quantize: str | None = None,
) -> Engine:
    """The engine with its model, which may be a GPTQ checkpoint, and adapters.

    Raises:
        ModelError, ServeError: the model, or how it shall be served, makes no sense.
    """
    if quantize not in (None, *FORMATS):
        raise ServeError(f"--quantize {quantize}: expected {' or '.join(FORMATS)}")
    if quantize and dtype == "float32":
        raise ServeError("--dtype float32: with --quantize, activations have 16 bits; leave it out")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    if device in (None, "cpu") and cache_gb > memory:
        raise ServeError(f"--cache-memory {cache_gb:g}: this machine has {memory:.0f} GB of memory")
    for name, folder in adapters.items():
        if not folder.is_dir():
            raise ServeError(f"adapter {name}: there is no folder {folder}")
        try:
            check_adapter(folder, name)  # before the model is loaded, which takes longer
        except (ValueError, TypeError, OSError) as error:
            raise ServeError(f"--adapter {name}={folder}: {error}") from None
    kind = weights_dtype(dtype, model, device)
    if is_gptq(model):
        if quantize:
            raise ServeError(f"--quantize {quantize}: the weights of {model} are quantized already")
        # torch's kernels for a few tokens on a CPU are for bf16.
        kind = torch.bfloat16 if dtype == "auto" else kind
        quantized = load_gptq(model, kind).to(pick_device(device))
        loaded = LoadedModel(quantized, load_tokenizer(model))
        stop_at_answer_end(*loaded)
    else:
        loaded = load(model, device=device, dtype=kind)
    try:
        return Engine(
            *loaded,
            memory_bytes=int(cache_gb * 1e9),
            token_budget=max(512, running),
            max_sequences=running,
            adapters=adapters,
            quantize=quantize,
        )
    except (ValueError, TypeError, OSError, RuntimeError) as error:  # such as no memory
        raise ServeError(f"{model} cannot be served with this: {error}") from None


def quantization_note(model: str, quantize: str) -> str:
    """What the weights' format costs, if it was measured: for SmolLM2, on the course's texts."""
    if model == smollm2.NAME:
        change, others = MEASURED[quantize]
        return (
            f"weights in {quantize}: on the course's sentences the loss changes by {change} nats "
            f"per token, and {others} of the most probable tokens are others"
        )
    return (
        f"weights in {quantize}: measure what your texts lose; "
        "book/acceleration/quantized-weights.md says how"
    )
