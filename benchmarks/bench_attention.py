"""Attention in tiles, plain attention and torch's: time and memory, forward and backward."""

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from benchmarks.compare import Comparison, compare_memory, compare_times
from course_pkg.acceleration.attention.decode import decode_attention
from course_pkg.acceleration.attention.flash import flash_attention
from course_pkg.acceleration.attention.plain import attention
from course_pkg.common.peak_memory import measure_memory

LIMIT, LIMIT_MEMORY, LIMIT_TORCH, LIMIT_SPLITS = 1.0, 0.1, 3.0, 1.5
HEADS, TOKENS, HEAD_DIM = 4, 4096, 64
QUERY_HEADS, CACHE, SPLITS = 32, 16384, 8


def measure(seconds: float = 60.0) -> Iterator[Comparison]:
    """Tiled against plain and against torch's attention; one query in parts against the whole."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for causal in (False, True):
        yield from _tiled(causal, seconds * 0.45, device)
    yield _decoding(seconds * 0.1, device)


def _tiled(causal: bool, seconds: float, device: torch.device) -> Iterator[Comparison]:
    inputs = _normal((HEADS, TOKENS), (HEADS, TOKENS), device)
    shape = f"{HEADS} heads of {HEAD_DIM}, {TOKENS} tokens, {'causal' if causal else 'no mask'}"
    what = f"attention in tiles and %s, {shape}, {device.type}, %s"
    forward = [partial(f, *inputs, causal=causal) for f in (flash_attention, attention)]
    torchs = partial(sdpa, *inputs, is_causal=causal)
    results = [call() for call in (*forward, torchs)]
    for result in results:
        torch.testing.assert_close(result, results[0], rtol=1e-4, atol=1e-4)
    extra = [measure_memory(call).extra / 2**20 for call in forward]
    trained = [each.clone().requires_grad_() for each in inputs]
    steps = [partial(_step, f, trained, causal) for f in (flash_attention, attention)]
    share = seconds / 3
    yield compare_times(what % ("plain", "forward"), *forward, seconds=share, limit=LIMIT)
    memory = what % ("plain", "forward: extra memory")
    yield Comparison(memory, "MiB", *extra, extra[0] / extra[1], LIMIT_MEMORY)
    yield compare_times(what % ("plain", "with gradients"), *steps, seconds=share, limit=LIMIT)
    yield compare_memory(what % ("plain", "with gradients: peak"), *steps, limit=LIMIT_MEMORY)
    yield compare_times(
        what % ("torch's", "forward"), forward[0], torchs, seconds=share, limit=LIMIT_TORCH
    )


def _decoding(seconds: float, device: torch.device) -> Comparison:
    inputs = _normal((QUERY_HEADS, 1), (QUERY_HEADS // 4, CACHE), device)
    return compare_times(
        f"one query in {SPLITS} parts and in one, {QUERY_HEADS} heads of {HEAD_DIM}, "
        f"{QUERY_HEADS // 4} key heads, {CACHE} keys, {device.type}",
        partial(decode_attention, *inputs, splits=SPLITS),
        partial(attention, *inputs),
        seconds=seconds,
        limit=LIMIT_SPLITS,
    )


def _normal(
    queries: tuple[int, int], keys: tuple[int, int], device: torch.device
) -> list[torch.Tensor]:
    """Query, key and value for one sequence; `queries` and `keys` are heads and tokens."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, *sizes, HEAD_DIM, generator=generator).to(device)
        for sizes in (queries, keys, keys)
    ]


def _step(function, inputs: list[torch.Tensor], causal: bool) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(function(*inputs, causal=causal).sum(), inputs)
