"""Measured memory: the recorder itself, and that tiled attention needs no N × N tensor."""

from functools import partial
from itertools import pairwise

import pytest
import torch

from benchmarks.compare import compare_memory
from course_pkg.acceleration.attention.flash import flash_attention
from course_pkg.acceleration.attention.plain import attention
from course_pkg.common.peak_memory import Memory, measure_memory


def inputs(tokens, heads=1, head_dim=64, requires_grad=False):
    generator = torch.Generator().manual_seed(0)
    shape = (1, heads, tokens, head_dim)
    return [torch.randn(shape, generator=generator, requires_grad=requires_grad) for _ in range(3)]


def test_inputs_views_and_changes_in_place_cost_nothing():
    a = torch.ones(256)
    assert measure_memory(lambda: a.view(16, 16).t().add_(1)) == Memory(0, 0, 0)


def test_a_freed_tensor_counts_in_the_peak_only():
    a = torch.ones(256)  # 1 KiB

    def call():
        b = a.repeat(4)  # 4 KiB
        c = b.sum()  # 4 bytes
        del b
        return c, a * 2  # 1 KiB

    assert measure_memory(call) == Memory(peak=4100, kept=1028, largest=4096)


def test_what_the_backward_pass_needs_is_kept():
    a = torch.ones(256, requires_grad=True)
    assert measure_memory(lambda: a.exp().exp().sum()).kept == 2 * 1024 + 4  # both results of exp


def test_the_peak_is_that_of_torchs_profiler():
    tensors = inputs(1024, requires_grad=True)

    def step(function):
        torch.autograd.grad(function(*tensors, causal=True).sum(), tensors)

    calls = [lambda function=function: step(function) for function in (attention, flash_attention)]
    profiled = compare_memory("peak", *calls, limit=float("inf"))
    for call, mib in zip(calls, (profiled.ours, profiled.theirs), strict=True):
        assert measure_memory(call).peak / 2**20 == pytest.approx(mib, rel=0.02)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "with gradients"])
def test_memory_grows_with_n_and_plain_memory_with_n_squared(backward):
    def memory(function, tokens):
        tensors = inputs(tokens, requires_grad=backward)

        def call():
            output = function(*tensors)
            return torch.autograd.grad(output.sum(), tensors) if backward else output

        return measure_memory(call)

    sizes = 256, 512, 1024
    small = partial(flash_attention, block_queries=64, block_keys=128)
    plain, tiled = ([memory(f, tokens) for tokens in sizes] for f in (attention, small))
    assert 3.5 < plain[2].peak / plain[1].peak < 4.1
    assert plain[2].largest == 1024**2 * 4
    steps = [after.peak - before.peak for before, after in pairwise(tiled)]
    assert steps[1] == pytest.approx(2 * steps[0], rel=0.1)  # linear: 256 more tokens, then 512
    # The largest tensor is a tile of scores, or as large as the output.
    for memory_used, tokens in zip(tiled, sizes, strict=True):
        assert memory_used.largest == 4 * max(64 * 128, tokens * 64)
    assert tiled[2].extra < plain[2].extra / 10
