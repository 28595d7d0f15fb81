"""The engine against transformers: one by one, in a static batch, and its continuous batching.

32 prompts, most of them short and few long, and 64 greedy tokens after each. Every way computes the
same tokens; transformers gets the page size and the budget that were best for it here.
"""

import time
from collections.abc import Callable, Iterator

import torch
from torch import nn
from transformers import ContinuousBatchingConfig, GenerationConfig

from benchmarks.bench_lora import build_model
from benchmarks.compare import Comparison, compare_times
from course_pkg.lm.tiny import tiny_tokenizer
from course_pkg.serving.engine import Engine
from course_pkg.serving.sampling import SamplingParams

PROMPTS, NEW, LONGEST, SHARED = 32, 64, 256, 512
BLOCK_SIZE, BUDGET = 8, 512
GREEDY = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
MOST_WASTE = 4.0  # per cent


def measure() -> Iterator[Comparison]:
    """Time per token with each way, memory that holds no token, and what a shared prefix saves."""
    name, model = build_model()
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    prompts = mixed_prompts(model.config.vocab_size)
    engine = Engine(
        model, tiny_tokenizer(), blocks=2048, block_size=BLOCK_SIZE, token_budget=BUDGET
    )
    page = 32
    pages = PROMPTS * -(-(LONGEST + NEW) // page)  # for all prompts at once
    sizes = ContinuousBatchingConfig(page_size=page, num_blocks=pages, max_batch_tokens=BUDGET)
    ways: dict[str, Callable[[list[list[int]]], object]] = {
        "generate, one by one": one_by_one(model),
        "generate, one batch": static_batch(model),
        "generate_batch": continuous_batch(model, sizes),
    }
    limits = dict(zip(ways, (1 / 4, 1 / 1.3, 1 / 1.1), strict=True))

    def ours(given: list[list[int]]) -> None:
        engine.scheduler.block_manager.forget_cache()
        engine.generate(given, GREEDY)

    for run in (ours, *ways.values()):
        run(prompts[:2])
    first = timed(ours, prompts)
    theirs = {way: timed(run, prompts) for way, run in ways.items()}
    mean = (first + timed(ours, prompts)) / 2  # before and after the others
    for way in ways:
        yield Comparison(
            f"{PROMPTS} prompts, {NEW} tokens each, {name}: the engine, and transformers' {way}",
            "ms/token",
            *(1000 * seconds / (PROMPTS * NEW) for seconds in (mean, theirs[way])),
            mean / theirs[way],
            limits[way],
        )
    yield waste(engine, prompts)
    yield first_token(engine, model.config.vocab_size)


def mixed_prompts(
    vocab: int, count: int = PROMPTS, typical: int = 48, longest: int = LONGEST
) -> list[list[int]]:
    """Random tokens; the lengths are lognormal around `typical`, from 16 to `longest`."""
    generator = torch.Generator().manual_seed(0)
    lengths = typical * (0.8 * torch.randn(count, generator=generator)).exp()
    return [
        torch.randint(vocab, (length,), generator=generator).tolist()
        for length in lengths.int().clamp(16, longest).tolist()
    ]


def timed(run: Callable[[list[list[int]]], object], prompts: list[list[int]]) -> float:
    """Seconds: wall time on a GPU; on a CPU, CPU time of the one thread that computes."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    started = clock()
    run(prompts)
    return clock() - started


def one_by_one(model: nn.Module, new: int = NEW) -> Callable[[list[list[int]]], object]:
    """transformers' generate for one prompt after another."""
    batch = static_batch(model, new)
    return lambda prompts: [batch([prompt]) for prompt in prompts]


def static_batch(model: nn.Module, new: int = NEW) -> Callable[[list[list[int]]], object]:
    """transformers' generate for all prompts, padded on the left to the longest."""
    settings = {"do_sample": False, "max_new_tokens": new, "eos_token_id": None, "pad_token_id": 0}

    def run(prompts: list[list[int]]) -> None:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(each)) + each for each in prompts])
        mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts])
        model.generate(ids.to(model.device), attention_mask=mask.to(model.device), **settings)

    return run


def continuous_batch(
    model: nn.Module, sizes: ContinuousBatchingConfig, new: int = NEW
) -> Callable[[list[list[int]]], object]:
    """transformers' generate_batch."""
    settings = GenerationConfig(
        max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0
    )

    def run(prompts: list[list[int]]) -> None:
        found = model.generate_batch(
            prompts, generation_config=settings, continuous_batching_config=sizes
        )
        if [len(each.generated_tokens) for each in found.values()] != [new] * len(prompts):
            raise RuntimeError("generate_batch did not generate all tokens")

    return run


def waste(engine: Engine, prompts: list[list[int]]) -> Comparison:
    """The mean part of reserved slots that hold no token, in blocks and with room for the most.

    Contiguous reservation gives each sequence room for the longest prompt and all new tokens.
    """
    manager, longest = engine.scheduler.block_manager, max(map(len, prompts)) + NEW
    manager.forget_cache()
    empty = slots = reserved = 0
    for prompt in prompts:
        engine.add(prompt, GREEDY)
    while engine.requests:
        engine.step()
        empty += manager.empty_slots()
        slots += (len(manager.pool.blocks) - manager.pool.num_free) * manager.block_size
        reserved += len(engine.scheduler.running) * longest
    ours, theirs = 100 * empty / slots, 100 * (1 - (slots - empty) / reserved)
    what = f"empty slots: blocks of {BLOCK_SIZE}, and room for {longest} tokens per sequence"
    return Comparison(what, "%", ours, theirs, ours / theirs, MOST_WASTE / theirs)


def first_token(engine: Engine, vocab: int, seconds: float = 30.0) -> Comparison:
    """The time to the first token after SHARED tokens and 16 others, cached and not."""
    generator = torch.Generator().manual_seed(1)
    shared = torch.randint(vocab, (SHARED,), generator=generator).tolist()
    once = SamplingParams(temperature=0, max_tokens=1)

    def hit() -> None:
        engine.generate(
            [[*shared, *torch.randint(vocab, (16,), generator=generator).tolist()]], once
        )

    def missed() -> None:
        engine.scheduler.block_manager.forget_cache()
        hit()  # and leaves the prefix in the cache

    return compare_times(
        f"first token after {SHARED} shared tokens and 16 others: cached, and not",
        hit,
        missed,
        seconds=seconds,
        limit=1 / 5,
    )
