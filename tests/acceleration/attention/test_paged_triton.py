"""The kernels of paged attention: in the interpreter on a CPU; the same tests and more on a GPU."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from course_pkg.acceleration.attention import paged_triton
from course_pkg.acceleration.attention.paged import PagedBatch
from course_pkg.acceleration.attention.paged_triton import (
    TritonBatch,
    paged_attention_triton,
    runs_kernels,
)
from course_pkg.lm.load import load
from course_pkg.serving.engine import Engine
from course_pkg.serving.sampling import SamplingParams
from tests.refusals import require_refusals
from tests.tolerance import rounding

from .examples import DEVICE, needs_triton
from .test_paged import (  # noqa: F401
    assert_equals_dense,
    attend,
    densely,
    parts_of_8_keys,
    scattered,
)

scattered32 = partial(scattered, dtype=torch.float32)


@needs_triton
@pytest.mark.parametrize(("tile", "window"), [((64, 16), 1), ((64, 16), None), ((16, 64), 3)])
def test_the_shape_of_tiles_changes_nothing(tile, window, monkeypatch):
    sizes = dict(zip(("ROWS", "KEYS"), tile, strict=True))
    monkeypatch.setattr(paged_triton, "_tile", lambda *arguments: sizes)
    query, cache, layout, dense = scattered32([(70, 70), (40, 21), (33, 1)])
    result = attend(TritonBatch, query, cache, layout, window)
    assert_equals_dense(result, dense, window=window)


@needs_triton
def test_more_parts_than_are_merged_at_once_and_parts_of_the_real_size(monkeypatch):
    query, cache, layout, dense = scattered32([(150, 1), (3, 1), (129, 1)], heads=2, kv_heads=1)
    assert_equals_dense(paged_attention_triton(query, *cache, *layout), dense)  # 19, 1, 17
    monkeypatch.undo()
    query, cache, layout, dense = scattered32([(513, 1), (512, 1)], heads=1, kv_heads=1)
    assert_equals_dense(paged_attention_triton(query, *cache, *layout), dense)


@needs_triton
def test_shifted_values():
    query, cache, layout, dense = scattered32([(21, 4), (21, 1)])
    cache[1].add_(100)
    dense = [(q, k, v + 100) for q, k, v in dense]
    assert_equals_dense(paged_attention_triton(query, *cache, *layout), dense)


@needs_triton
@pytest.mark.parametrize("strides", [(8, 104, 1), (32, 1, 4)])
def test_the_query_may_have_any_layout_in_memory(strides):
    query, cache, layout, dense = scattered32([(20, 12), (9, 1)])
    size = max(1 + sum((n - 1) * s for n, s in zip(query.shape, strides, strict=True)), 416)
    other = torch.empty(size, device=DEVICE).as_strided(query.shape, strides).copy_(query)
    result = paged_attention_triton(other, *cache, *layout)
    assert result.is_contiguous()
    assert_equals_dense(result, dense)


# ---------------------------------------------------------------- arguments and platforms

CACHE = torch.zeros(4, 2, 4, 8)
LAYOUT = ([[1]], [2], [0, 1])


def test_tensors_that_the_kernels_do_not_take(monkeypatch):
    monkeypatch.setattr("course_pkg.common.triton_runtime.INSTALLED", True)
    monkeypatch.setattr("course_pkg.common.triton_runtime.INTERPRETED", True)

    require_refusals(
        (torch.zeros(1, 4, 8).double(), CACHE.double(),
         "TypeError: query and cache have type torch.float64: .* or use course_pkg.acceleration."),
        (torch.zeros(1, 4, 160), torch.zeros(4, 2, 4, 160),
         "ValueError: head_dim is 160: the kernels take at most 128"),
        (torch.zeros(1, 4, 8).half(), CACHE,
         "TypeError: query is torch.float16 on cpu, a cache torch.float32 on cpu: give all of one"),
        (torch.zeros(1, 4, 8), torch.zeros(4, 2, 8, 4).transpose(2, 3),
         r"ValueError: .*strides \(64, 32, 1, 4\) .* the numbers of a slot adjacent"),
        of=lambda query, cache: attend(TritonBatch, query, (cache, cache), LAYOUT),
        errors=(TypeError, ValueError),
    )  # fmt: skip
    batch = TritonBatch((CACHE, CACHE), *LAYOUT)
    with pytest.raises(ValueError, match=r"a cache \(3, 2, 4, 8\) .* for a batch of \(4, 2, 4, 8"):
        batch.attend(torch.zeros(1, 4, 8), (CACHE, CACHE[:3]))


@pytest.mark.parametrize(
    ("most", "dtype", "expected"),
    [(4, "bfloat16", (16, 64)), (18, "float16", (32, 64)), (2048, "float16", (64, 64)),
     (1, "float32", (16, 32)), (2048, "float32", (32, 32))],
)  # fmt: skip
def test_on_a_gpu_a_tile_has_room_for_the_heads_of_a_query(most, dtype, expected, monkeypatch):
    monkeypatch.setattr(paged_triton, "INTERPRETED", False)
    monkeypatch.setattr(paged_triton.triton, "next_power_of_2", lambda n: 1 << (n - 1).bit_length())
    tile = paged_triton._tile(most, torch.empty(0, dtype=getattr(torch, dtype)))
    assert (tile["ROWS"], tile["KEYS"]) == expected


@pytest.mark.parametrize(
    ("changes", "compiled", "taken"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"is_cuda": False}, True, False),
        ({"dtype": torch.float64}, True, False),
        ({"shape": (4, 2, 4, 160)}, True, False),
    ],
)
def test_only_a_gpu_and_a_cache_that_they_take_run_kernels(changes, compiled, taken, monkeypatch):
    cache = {"dtype": torch.bfloat16, "shape": (4, 2, 4, 128), "is_cuda": True} | changes
    monkeypatch.setattr(paged_triton, "INSTALLED", True)
    monkeypatch.setattr(paged_triton, "INTERPRETED", not compiled)
    assert runs_kernels(SimpleNamespace(**cache)) is taken


# ---------------------------------------------------------------- the engine

MODEL, TOKENIZER = load("tiny")
GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def generated(prompts, model=MODEL):
    engine = Engine(model, TOKENIZER, blocks=40, block_size=3, token_budget=8, max_sequences=4)
    return [request.completions[0].tokens for request in engine.generate(prompts, GREEDY)]


@needs_triton
def test_an_engine_with_the_kernels_gives_the_same_greedy_tokens(monkeypatch):
    prompts = [list(range(1, 14)), [7, 8], [5] * 6]
    launches = []
    expected = generated(prompts)
    monkeypatch.setattr(paged_triton, "runs_kernels", lambda cache: True)
    run = TritonBatch._launch
    monkeypatch.setattr(
        TritonBatch, "_launch", lambda self, *arguments: launches.append(run(self, *arguments))
    )
    assert generated(prompts, MODEL.to(DEVICE)) == expected
    assert len(launches) > 10
    MODEL.cpu()


# ---------------------------------------------------------------- on a GPU


@needs_triton
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "head_dim", "window"),
    [
        (torch.bfloat16, 64, None),
        (torch.bfloat16, 128, 700),
        (torch.float16, 128, None),
        (torch.float32, 64, 700),
    ],
)
def test_real_sizes_are_as_exact_as_torch(dtype, head_dim, window, monkeypatch):
    monkeypatch.undo()
    sizes = [(1025, 1), (97, 97), (1500, 300), (4000, 1), (1, 1)]
    query, cache, layout, dense = scattered(
        sizes, dtype=dtype, heads=16, kv_heads=4, block_size=16, head_dim=head_dim
    )
    exact = densely([[tensor.double() for tensor in inputs] for inputs in dense], window=window)
    errors = [
        (attend(batch_type, query, cache, layout, window).double() - exact).norm()
        for batch_type in (TritonBatch, PagedBatch)
    ]
    assert errors[0] <= max(2 * errors[1], rounding(4000) * exact.norm())


@needs_triton
@pytest.mark.gpu
def test_blocks_are_not_copied(monkeypatch):
    monkeypatch.undo()
    cache = tuple(torch.zeros(4100, 8, 16, 64, dtype=torch.bfloat16, device="cuda") for _ in "kv")
    query = torch.zeros(32, 32, 64, dtype=torch.bfloat16, device="cuda")
    tables = [list(range(128 * i, 128 * (i + 1))) for i in range(32)]
    batch = TritonBatch(cache, tables, [2048] * 32, list(range(33)))
    for _ in range(2):  # the first run compiles
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        batch.attend(query, cache)
        used = torch.cuda.max_memory_allocated() - before
    assert used < 2**21  # 4 parts in float32; the keys and values have 128 MiB


@needs_triton
@pytest.mark.gpu
def test_an_engine_on_a_gpu_runs_the_kernels():
    prompts = [list(range(1, 14)), [7, 8], [5] * 6]
    expected = generated(prompts)
    try:
        assert runs_kernels(Engine(MODEL.cuda(), TOKENIZER, blocks=2).runner.caches[0][0])
        assert generated(prompts, MODEL) == expected
    finally:
        MODEL.cpu()
