"""The engine on a GPU against transformers, on a random Llama of Llama-3.2-1B's size in bfloat16.

128 prompts, most of them short and few long, and 256 greedy tokens after each. transformers'
generate_batch chooses its own pages, budget and kernels, and uses FlashAttention if installed.
"""

import time
from collections.abc import Callable, Iterator

import torch
from transformers import ContinuousBatchingConfig, LlamaConfig, LlamaForCausalLM

from benchmarks.bench_engine import continuous_batch, mixed_prompts, one_by_one, static_batch
from benchmarks.compare import Comparison, NotMeasured
from course_pkg.acceleration.attention.paged_triton import runs_kernels
from course_pkg.lm.tiny import tiny_tokenizer
from course_pkg.serving.engine import Engine
from course_pkg.serving.sampling import SamplingParams

PROMPTS, ALONE, NEW, TYPICAL, LONGEST = 128, 4, 256, 256, 2048  # ALONE: prompts one by one
BLOCK_SIZE, BUDGET = 16, 2048
LIMITS = {"generate, one by one": 1 / 4, "generate, one batch": 1 / 1.3, "generate_batch": 1 / 1.1}
GREEDY = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)

Prompts = list[list[int]]


def measure() -> Iterator[Comparison | NotMeasured]:
    """Tokens per second with each way, as a ratio of times. Without a GPU it says so."""
    if not torch.cuda.is_available():
        yield NotMeasured("the engine and transformers' generation on a GPU", "needs a GPU")
        return
    model = build_model()
    prompts = mixed_prompts(model.config.vocab_size, PROMPTS, TYPICAL, LONGEST)
    engine = Engine(
        model,
        tiny_tokenizer(),
        blocks=sum(-(-(len(prompt) + NEW) // BLOCK_SIZE) for prompt in prompts),
        block_size=BLOCK_SIZE,
        token_budget=BUDGET,
        max_sequences=PROMPTS,
    )

    def ours(given: Prompts) -> None:
        engine.scheduler.block_manager.forget_cache()
        engine.generate(given, GREEDY)

    ways = (
        one_by_one(model, NEW),
        static_batch(model, NEW),
        continuous_batch(model, ContinuousBatchingConfig(), NEW),
    )
    for run in (ours, *ways):
        run(prompts[:2])  # compiles
    times = [time_per_token(ours, prompts)]
    theirs = [
        time_per_token(run, prompts[:ALONE] if name.endswith("one by one") else prompts)
        for name, run in zip(LIMITS, ways, strict=True)
    ]
    times.append(time_per_token(ours, prompts))  # before and after the others
    mean = sum(times) / len(times)
    attention = "Triton" if runs_kernels(engine.runner.caches[0][0]) else "torch"
    what = f"{PROMPTS} prompts, {NEW} tokens each, random 1B Llama, bf16: the engine ({attention})"
    for (name, limit), their in zip(LIMITS.items(), theirs, strict=True):
        label = f"{what}, and transformers' {name}"
        yield Comparison(label, "tokens/s", 1 / mean, 1 / their, mean / their, limit)


def build_model() -> LlamaForCausalLM:
    """Random weights in the shapes of Llama-3.2-1B: 2.5 GB in bfloat16."""
    sizes = {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "head_dim": 64}
    heads = {"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8}
    config = LlamaConfig(**sizes, **heads, max_position_embeddings=8192, tie_word_embeddings=True)
    with torch.device("cuda"):
        return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def time_per_token(run: Callable[[Prompts], object], prompts: Prompts) -> float:
    """Seconds of wall time per new token."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    run(prompts)
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / (len(prompts) * NEW)
