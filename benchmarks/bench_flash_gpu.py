"""FlashAttention on a GPU: our Triton kernels and torch's flash backend (FlashAttention-2)."""

from collections.abc import Callable, Iterator
from itertools import product

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.compare import Comparison, NotMeasured, compare_times, kernels_lack
from course_pkg.acceleration.attention.flash_triton import flash_attention_triton

FORWARD, BACKWARD = 1 / 0.9, 1 / 0.8  # at least 0.9 and 0.8 of the speed of torch's backend
TOKENS = (1024, 2048, 4096, 8192, 16384)
WIDTH, TOTAL = 2048, 16384  # heads × head_dim, and batch × tokens, as in FlashAttention-2's paper
REPEATS = 10  # calls between two waits for the GPU, so that it doesn't wait for Python


def measure(seconds: float = 0.5) -> Iterator[Comparison | NotMeasured]:
    """Forward and backward in bfloat16, head dims 64 and 128, 1K to 16K tokens, causal or not.

    The times are those of ten calls. Without a GPU it says so.
    """
    what = "FlashAttention in Triton and torch's flash backend"
    if reason := kernels_lack():
        yield NotMeasured(what, reason)
        return
    for head_dim, causal, tokens in product((64, 128), (False, True), TOKENS):
        yield from _compare(head_dim, causal, tokens, seconds)


def _compare(head_dim: int, causal: bool, tokens: int, seconds: float) -> list[Comparison]:
    shape = TOTAL // tokens, WIDTH // head_dim, tokens, head_dim
    generator = torch.Generator("cuda").manual_seed(0)
    query, key, value, gradient = (
        torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)
        for _ in range(4)
    )
    inputs = [each.requires_grad_() for each in (query, key, value)]

    def ours() -> torch.Tensor:
        return flash_attention_triton(query, key, value, causal=causal)

    def theirs() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(query, key, value, is_causal=causal)

    def gradients(output: torch.Tensor) -> Callable[[], object]:
        return lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)

    what = f"batch {shape[0]}, {tokens} tokens, head dim {head_dim}{', causal' * causal}, bf16"
    forward = [_repeated(call) for call in (ours, theirs)]
    backward = [_repeated(gradients(call())) for call in (ours, theirs)]
    return [
        compare_times(f"attention, {what}", *forward, seconds=seconds, limit=FORWARD),
        compare_times(f"its gradients, {what}", *backward, seconds=seconds, limit=BACKWARD),
    ]


def _repeated(call: Callable[[], object]) -> Callable[[], None]:
    def calls() -> None:
        for _ in range(REPEATS):
            call()

    return calls
