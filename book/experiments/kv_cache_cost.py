"""What a KV cache costs and saves: SmolLM2 decodes with one and without, and in unusual settings.

    python book/experiments/kv_cache_cost.py            run what is missing of the record
    python book/experiments/kv_cache_cost.py --confirm  after an edit: run one short row again

Run it with OMP_NUM_THREADS=1: times are seconds of processor time, which other programs on the same
machine change less than the time on a clock. A step's time is the least of several runs; a
generation runs once. The losses are nats per token of a text, the later half of it where the start
is special.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from record import main
from torch import Tensor

from course_pkg.lm.decoder import Attend, Decoder, causal_attend
from course_pkg.lm.load import load
from course_pkg.pages.datasets import load_examples, load_texts
from course_pkg.serving.kv_cache import ContiguousCache, StaticCache, generate, recompute

MODEL, TEXT, SINKS = "smollm2-135m", 512, 4
PROMPT = 16
DATA = ("navigator/train.jsonl", "passages/test.jsonl")
PROBE = {"what": "window", "window": 16}  # what is rounded to 8 bits differs between processors
PLAN = [
    {"what": "eight bits", "tokens": 64},
    {"what": "eight bits", "tokens": TEXT},
    *({"what": "step", "tokens": n} for n in (16, 32, 64, 128, 256, 384, 512)),
    *({"what": "generation", "new": n} for n in (16, 32, 64, 128)),
    *({"what": "batch", "batch": b, "tokens": n} for n in (64, 512) for b in (1, 2, 4, 8, 16, 32)),
    *({"what": "window", "window": w} for w in (16, 32, 64, 128, 256)),
    *({"what": "gap", "gap": g} for g in (0, 2000, 4000, 7000, 16000, 32000)),
    {"what": "machine", "size": 1024},
]


class Decoding:
    """The decoder, and two texts: one to continue, one whose loss is measured."""

    def __init__(self) -> None:
        model, tokenizer = load(MODEL)
        self.model = Decoder.from_transformers(model)
        examples = "\n\n".join(f"{e.prompt}\n{e.response}" for e in load_examples())
        self.continued = tokenizer(examples, return_tensors="pt").input_ids  # (1, tokens)
        passages = "\n\n".join(load_texts())
        self.scored = tokenizer(passages, return_tensors="pt").input_ids[:, :TEXT]  # (1, TEXT)

    def losses(
        self, ids: Tensor, attend: Attend | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """The negative log-likelihood of each token but the first, (tokens - 1,)."""
        logits = self.model(ids, positions, attend)
        return F.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none")


def least(step: Callable[[], object], runs: int) -> float:
    """The least processor time of a step, in seconds, after one run that is not counted."""
    step()
    times = []
    for _ in range(runs):
        started = time.process_time()
        step()
        times.append(time.process_time() - started)
    return min(times)


@torch.no_grad()
def measure(task: Decoding, key: dict) -> dict:
    """The row of one key; see the functions below."""
    values = {name: value for name, value in key.items() if name != "what"}
    return globals()[key["what"].replace(" ", "_")](task, **values)


def eight_bits(task: Decoding, tokens: int) -> dict:
    """The loss with a cache in 32 bits and in 8, and the errors that make the difference."""
    ids = task.scored[:, :tokens]
    exact = ContiguousCache(task.model.config)
    rounded = ContiguousCache(task.model.config, eight_bit=True)
    losses = {cache: task.losses(ids, cache.attend) for cache in (exact, rounded)}
    held = [storage.held for storage in exact.layers]
    restored = [
        tuple(c * s for c, s in zip(storage.codes.held, storage.scales.held, strict=True))
        for storage in rounded.layers
    ]
    errors = [
        max(((back - x).norm() / x.norm()).item() for x, back in zip(*both, strict=True))
        for both in zip(held[:1], restored[:1], strict=True)  # later layers read other inputs
    ]
    return {
        "nll": losses[exact].mean().item(),
        "nll_eight_bits": losses[rounded].mean().item(),
        "mean_change": (losses[rounded] - losses[exact]).abs().mean().item(),
        "relative_error": max(errors),
        "bytes": exact.bytes,
        "bytes_eight_bits": rounded.bytes,
    }


def step(task: Decoding, tokens: int) -> dict:
    """One step after which `tokens` tokens are known, with a cache and without."""
    ids = task.continued[:, :tokens]
    cache = StaticCache(task.model.config, tokens)
    generate(task.model, ids[:, :-1], 1, cache)

    def cached() -> None:
        cache.truncate(tokens - 1)
        task.model(ids[:, -1:], cache.positions(1), cache.attend)

    return {
        "cached_seconds": least(cached, 9),
        "recomputed_seconds": least(lambda: task.model(ids, last_only=True), 5),
    }


def generation(task: Decoding, new: int) -> dict:
    """`new` tokens after a prompt, with a cache and without."""
    ids = task.continued[:, :PROMPT]
    cache = StaticCache(task.model.config, PROMPT + new)
    started = time.process_time()
    with_cache = generate(task.model, ids, new, cache)
    between = time.process_time()
    without = recompute(task.model, ids, new)
    return {
        "same": torch.equal(with_cache, without),
        "cached_seconds": between - started,
        "recomputed_seconds": time.process_time() - between,
    }


def batch(task: Decoding, batch: int, tokens: int) -> dict:
    """One step of several sequences of `tokens` tokens, with a cache."""
    ids = task.continued[:, :tokens].expand(batch, -1)
    cache = StaticCache(task.model.config, tokens)
    for row in cache.layers:  # any numbers will do for a time: no prefill of the whole batch
        row.append(*torch.randn(2, batch, task.model.config.kv_heads, tokens, 64))

    def cached() -> None:
        cache.truncate(tokens - 1)
        task.model(ids[:, -1:], cache.positions(1), cache.attend)

    return {"cached_seconds": least(cached, 5), "bytes": cache.bytes}


def window(task: Decoding, window: int) -> dict:
    """The loss if a model that was trained without a window gets one, and if it keeps its start."""
    config = replace(task.model.config, windows=(window,) * task.model.config.layers)

    def with_start(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        i = torch.arange(query.shape[2])[:, None]  # (tokens, 1)
        j = i.mT  # (1, tokens)
        seen = (j <= i) & ((j > i - window) | (j < SINKS))  # (tokens, tokens)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, enable_gqa=True)

    later = slice(TEXT // 2, None)
    return {
        "nll_all": task.losses(task.scored)[later].mean().item(),
        "nll_window": task.losses(task.scored, causal_attend(config))[later].mean().item(),
        "nll_with_start": task.losses(task.scored, with_start)[later].mean().item(),
    }


def machine(task: Decoding, size: int) -> dict:
    """What the processor can do: a product of two matrices, and one of a large one and a vector."""
    square, large = torch.randn(size, size), torch.randn(128 * size, size)
    vector = torch.randn(size)
    return {
        "operations": 2 * size**3,
        "product_seconds": least(lambda: square @ square, 9),
        "bytes": large.nbytes,
        "vector_seconds": least(lambda: large @ vector, 9),
    }


def gap(task: Decoding, gap: int) -> dict:
    """The loss of the text's second half if its positions begin `gap` later."""
    positions = torch.arange(TEXT)
    positions[TEXT // 2 :] += gap
    return {"nll": task.losses(task.scored, positions=positions)[TEXT // 2 :].mean().item()}


if __name__ == "__main__":
    settings = {"model": MODEL, "text": TEXT, "prompt": PROMPT, "kept_start": SINKS}
    main(__file__, PLAN, Decoding, measure, probe=PROBE, settings=settings, data=DATA)
