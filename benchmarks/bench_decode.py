"""Decoding: with a cache against recomputing, and our generation against transformers'."""

from collections.abc import Callable, Iterator

import torch

from benchmarks.bench_lora import build_model
from benchmarks.compare import Comparison, compare_times
from course_pkg.lm.decoder import Decoder
from course_pkg.serving.kv_cache import StaticCache, generate

# The most that a step with a cache may take, as a part of a step that computes all tokens again.
LIMITS = {16: 0.9, 32: 0.7, 64: 0.45, 128: 0.25, 256: 0.15, 512: 0.1}
PROMPT, NEW = 64, 32


def measure(seconds: float = 90.0) -> Iterator[Comparison]:
    """One step after n tokens, with a cache and without; then 32 tokens, ours and transformers'."""
    name, theirs = build_model()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    theirs = theirs.to(device).eval()
    model = Decoder.from_transformers(theirs)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (1, max(LIMITS)), generator=generator).to(device)
    share = seconds / (len(LIMITS) + 2)
    for tokens, limit in LIMITS.items():
        yield compare_times(
            f"step at {tokens} tokens, {name}, {device.type}: with a cache, and recomputing",
            cached_step(model, ids[:, :tokens]),
            recomputed_step(model, ids[:, :tokens]),
            seconds=share,
            limit=limit,
        )
    yield compare_times(
        f"{NEW} tokens after {PROMPT}, {name}, {device.type}: with a cache, and transformers'",
        our_generation(model, ids[:, :PROMPT]),
        their_generation(theirs, ids[:, :PROMPT]),
        seconds=2 * share,
        limit=1.05,
    )


def cached_step(model: Decoder, ids: torch.Tensor) -> Callable[[], object]:
    """A function that computes the last token's logits from a cache of the others."""
    cache, kept = StaticCache(model.config, ids.shape[1]), ids.shape[1] - 1
    generate(model, ids[:, :-1], 1, cache)

    @torch.no_grad()
    def step() -> None:
        cache.truncate(kept)
        model(ids[:, -1:], cache.positions(1), cache.attend)

    return step


def recomputed_step(model: Decoder, ids: torch.Tensor) -> Callable[[], object]:
    """A function that computes the last token's logits from all tokens."""
    return torch.no_grad()(lambda: model(ids, last_only=True))


def our_generation(model: Decoder, ids: torch.Tensor) -> Callable[[], object]:
    """A function that generates with a static cache, which it uses again and again."""
    cache = StaticCache(model.config, ids.shape[1] + NEW)

    def run() -> None:
        cache.reset()
        generate(model, ids, NEW, cache)

    return run


def their_generation(model: torch.nn.Module, ids: torch.Tensor) -> Callable[[], object]:
    """A function that generates with transformers' default cache."""
    settings = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    mask = torch.ones_like(ids)
    return lambda: model.generate(ids, attention_mask=mask, max_new_tokens=NEW, **settings)
