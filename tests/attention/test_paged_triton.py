"""The kernels of paged attention: in the interpreter on a CPU; the same tests and more on a GPU."""

import importlib
import math
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import course_pkg.attention
from course_pkg.attention import paged_triton
from course_pkg.attention.decode import merge
from course_pkg.attention.flash_triton_forward import lse_rows
from course_pkg.attention.paged import PagedBatch, paged_attention
from course_pkg.attention.paged_triton import (
    TritonBatch,
    paged_attention_triton,
    paged_batch,
    runs_kernels,
)
from course_pkg.attention.paged_triton_kernels import merge_kernel
from course_pkg.attention.triton_runtime import rows
from course_pkg.lm.load import load
from course_pkg.serving.engine import Engine
from course_pkg.serving.sampling import SamplingParams

from .test_flash_triton import DEVICE, needs_triton, python
from .test_paged import densely, scattered

MIXED = [(9, 1), (23, 5), (1, 1), (5, 5), (17, 1), (30, 12)]


@pytest.fixture(autouse=True)
def parts_of_8_keys(monkeypatch):
    monkeypatch.setattr(paged_triton, "PART_KEYS", 8)


def on_device(query, cache, layout, dense):
    """What `scattered` returns, on the device of the kernels."""
    cache = tuple(each.to(DEVICE) for each in cache)
    return query.to(DEVICE), cache, layout, [[x.to(DEVICE) for x in each] for each in dense]


def example(sizes=MIXED, dtype=torch.float32, **options):
    return on_device(*scattered(sizes, dtype=dtype, **options))


def assert_equals_dense(result, dense, **options):
    """In float32, only the order of additions differs: 1e-6 is 8 units of the last place.

    Values of both signs may add up to almost nothing, so the unit is at least that of one value.
    """
    exact = densely([[each.double() for each in inputs] for inputs in dense], **options)
    largest = max(each.abs().max() for inputs in dense for each in inputs)
    assert (result - exact).norm() <= 1e-6 * max(exact.norm(), largest)


# Tiles have 16 rows and 16 keys in the interpreter, and here a part has 8 keys.
@needs_triton
@pytest.mark.parametrize(
    ("heads", "window"),
    [
        *(((4, 2), window) for window in (None, 1, 3, 8, 100)),
        ((3, 3), None),
        ((9, 3), 12),
        ((18, 1), 5),  # the heads of one query are in two tiles
        ((18, 1), None),
    ],
)
def test_prompts_chunks_and_generation_in_one_batch(heads, window):
    query, cache, layout, dense = example(heads=heads[0], kv_heads=heads[1])
    result = paged_attention_triton(query, *cache, *layout, window=window)
    assert_equals_dense(result, dense, window=window)


@needs_triton
@given(
    st.lists(
        st.integers(1, 40).flatmap(
            lambda n: st.tuples(st.just(n), st.sampled_from([1, -(-n // 2), n]))
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 20),
    st.none() | st.integers(1, 45),
    st.sampled_from([1, 8, 24]),
)
@settings(deadline=None, max_examples=15)
def test_any_lengths_block_sizes_windows_and_head_dims(sizes, block_size, window, head_dim):
    query, cache, layout, dense = example(
        sizes, block_size=block_size, head_dim=head_dim, heads=2, kv_heads=1
    )
    result = paged_attention_triton(query, *cache, *layout, window=window, scale=0.3)
    assert_equals_dense(result, dense, window=window, scale=0.3)


@needs_triton
@pytest.mark.parametrize("filler", [math.nan, math.inf])
def test_slots_that_no_query_sees_are_not_read(filler):
    query, cache, (tables, lengths, starts), dense = example([(22, 1), (20, 3), (6, 2)])
    for tensor in cache:
        tensor[tensor.isnan()] = filler
    first_seen = (18, 14, 1)  # with a window of 4: in the middle of a block of 4, of 4, and 1
    for table, first in zip(tables, first_seen, strict=True):
        for tensor in cache:
            for token in range(first):
                tensor[table[token // 4], :, token % 4] = filler
    result = paged_attention_triton(query, *cache, tables, lengths, starts, window=4)
    assert_equals_dense(result, dense, window=4)


@needs_triton
@pytest.mark.parametrize(("tile", "window"), [((64, 16), 1), ((64, 16), None), ((16, 64), 3)])
def test_the_shape_of_tiles_changes_nothing(tile, window, monkeypatch):
    sizes = dict(zip(("ROWS", "KEYS"), tile, strict=True))
    monkeypatch.setattr(paged_triton, "_tile", lambda *given: sizes)
    query, cache, layout, dense = example([(70, 70), (40, 21), (33, 1)])
    result = paged_attention_triton(query, *cache, *layout, window=window)
    assert_equals_dense(result, dense, window=window)


@needs_triton
def test_a_table_may_be_longer_than_its_sequence():
    query, cache, (tables, lengths, starts), dense = example([(9, 2), (3, 1)])
    longer = [[*table, 999] for table in tables]
    assert_equals_dense(paged_attention_triton(query, *cache, longer, lengths, starts), dense)


@needs_triton
def test_more_parts_than_are_merged_at_once_and_parts_of_the_real_size(monkeypatch):
    query, cache, layout, dense = example([(150, 1), (3, 1), (129, 1)], heads=2, kv_heads=1)
    assert_equals_dense(paged_attention_triton(query, *cache, *layout), dense)  # 19, 1, 17
    monkeypatch.undo()
    query, cache, layout, dense = example([(513, 1), (512, 1)], heads=1, kv_heads=1)
    assert_equals_dense(paged_attention_triton(query, *cache, *layout), dense)


@needs_triton
def test_the_merging_kernel_equals_merge():
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(20, 2, 1, 8, generator=generator).to(DEVICE)  # (parts, heads, 1, …)
    lse = 10 * torch.randn(20, 2, 1, generator=generator).to(DEVICE)
    expected, _ = merge(list(outputs), list(lse))
    spans = torch.tensor([[0, 1, 20, 0]], dtype=torch.int32, device=DEVICE)
    found = torch.empty(1, 2, 8, device=DEVICE)
    merge_kernel[1, 2](
        rows(outputs), lse_rows(lse / math.log(2)), rows(found), spans, 1,
        HEAD_DIM=8, PADDED_DIM=16, WINDOW=None,
    )  # fmt: skip
    torch.testing.assert_close(found.transpose(0, 1), expected)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_error_is_at_most_twice_that_of_the_dense_computation(dtype):
    query, cache, layout, dense = example([(97, 1), (33, 33), (40, 7)], dtype, head_dim=32)
    exact = densely([[each.double() for each in inputs] for inputs in dense])
    result = paged_attention_triton(query, *cache, *layout)
    assert result.dtype == dtype
    assert (result.double() - exact).norm() <= 2 * (densely(dense).double() - exact).norm()


@needs_triton
@pytest.mark.parametrize("scale", [-0.7, 0.0, 5.0])
def test_any_scale_and_shifted_values(scale):
    query, cache, layout, dense = example([(21, 4), (21, 1)])
    cache[1].add_(100)
    dense = [(q, k, v + 100) for q, k, v in dense]
    result = paged_attention_triton(query, *cache, *layout, scale=scale)
    assert_equals_dense(result, dense, scale=scale)


@needs_triton
def test_a_sequence_that_generates_has_the_same_bits_alone():
    query, cache, (tables, lengths, starts), _ = example()
    together = paged_attention_triton(query, *cache, tables, lengths, starts)
    for i, row in ((0, 0), (2, 6), (4, 12)):
        alone = paged_attention_triton(
            query[row : row + 1], *cache, [tables[i]], [lengths[i]], [0, 1]
        )
        assert torch.equal(alone, together[row : row + 1])


@needs_triton
@pytest.mark.parametrize("strides", [(8, 104, 1), (32, 1, 4)])
def test_the_query_may_have_any_layout_in_memory(strides):
    query, cache, layout, dense = example([(20, 12), (9, 1)])
    size = max(1 + sum((n - 1) * s for n, s in zip(query.shape, strides, strict=True)), 416)
    other = torch.empty(size, device=DEVICE).as_strided(query.shape, strides).copy_(query)
    result = paged_attention_triton(other, *cache, *layout)
    assert result.is_contiguous()
    assert_equals_dense(result, dense)


@needs_triton
def test_one_batch_serves_every_layer():
    query, cache, layout, dense = example()
    batch = TritonBatch(cache, *layout)
    assert_equals_dense(batch.attend(query, cache), dense)
    other = tuple(tensor.flip(3) for tensor in cache)  # another layer
    flipped = [(q, k.flip(3), v.flip(3)) for q, k, v in dense]
    assert_equals_dense(batch.attend(query, other), flipped)


@needs_triton
def test_an_empty_batch():
    cache = torch.zeros(2, 2, 4, 8, device=DEVICE)
    query = torch.zeros(0, 4, 8, device=DEVICE)
    assert paged_attention_triton(query, cache, cache, [], [], [0]).shape == (0, 4, 8)


# ---------------------------------------------------------------- arguments and platforms

CACHE, LAYOUT = torch.zeros(4, 2, 4, 8), ([[1]], [2], [0, 1])


@pytest.mark.parametrize(
    ("query", "cache", "error", "says"),
    [
        (torch.zeros(2, 4, 8), CACHE, ValueError, "for 1 tokens and a cache"),
        (torch.zeros(1, 4, 8).double(), CACHE.double(), TypeError,
         "query and cache have type torch.float64: .* or use course_pkg.attention.paged"),
        (torch.zeros(1, 4, 160), torch.zeros(4, 2, 4, 160), ValueError,
         "head_dim is 160: the kernels take at most 128"),
        (torch.zeros(1, 4, 8).half(), CACHE, TypeError,
         "query is torch.float16 on cpu, a cache torch.float32 on cpu: give all of one type"),
        (torch.zeros(1, 4, 8), torch.zeros(4, 2, 8, 4).transpose(2, 3), ValueError,
         r"strides \(64, 32, 1, 4\) .* the numbers of a slot adjacent"),
    ],
)  # fmt: skip
def test_tensors_that_the_kernels_do_not_take(query, cache, error, says, monkeypatch):
    monkeypatch.setattr(paged_triton, "INSTALLED", True)
    monkeypatch.setattr("course_pkg.attention.flash_triton.INTERPRETED", True)
    with pytest.raises(error, match=says):
        TritonBatch((cache, cache), *LAYOUT).attend(query, (cache, cache))


def test_a_layer_of_another_shape_is_refused(monkeypatch):
    monkeypatch.setattr(paged_triton, "INSTALLED", True)
    monkeypatch.setattr("course_pkg.attention.flash_triton.INTERPRETED", True)
    batch = TritonBatch((CACHE, CACHE), *LAYOUT)
    with pytest.raises(ValueError, match=r"a cache \(3, 2, 4, 8\) .* for a batch of \(4, 2, 4, 8"):
        batch.attend(torch.zeros(1, 4, 8), (CACHE, CACHE[:3]))


def test_a_batch_that_does_not_fit():
    with pytest.raises(ValueError, match=r"sequence 0: blocks \[4\], the cache has 0 … 3"):
        TritonBatch((CACHE, CACHE), [[4]], [2], [0, 1])


def test_without_triton_attention_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(paged_triton, "INSTALLED", False)
    with pytest.raises(ImportError, match="triton is not installed: it exists for Linux"):
        paged_attention_triton(torch.zeros(1, 4, 8), CACHE, CACHE, *LAYOUT)


def test_without_triton_a_step_is_computed_by_torch(monkeypatch):
    for name in ("paged_triton", "paged_triton_kernels", "flash_triton", "flash_triton_forward",
                 "flash_triton_backward", "triton_runtime"):  # fmt: skip
        module = importlib.import_module(f"course_pkg.attention.{name}")
        monkeypatch.setattr(course_pkg.attention, name, module)  # restores it afterwards
        monkeypatch.delitem(sys.modules, module.__name__)
    monkeypatch.setitem(sys.modules, "triton", None)
    module = importlib.import_module("course_pkg.attention.paged_triton")
    assert not module.INSTALLED
    assert isinstance(module.paged_batch((CACHE, CACHE), *LAYOUT), PagedBatch)


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


@pytest.mark.parametrize("kernels", [False, True])
def test_the_batch_is_of_kernels_where_they_run(kernels, monkeypatch):
    monkeypatch.setattr(paged_triton, "runs_kernels", lambda cache: kernels)
    batch = paged_batch((CACHE, CACHE), *LAYOUT, window=3)
    assert type(batch) is (TritonBatch if kernels else PagedBatch)


# ---------------------------------------------------------------- the engine

MODEL, TOKENIZER = load("tiny")
GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def generated(prompts, model=MODEL):
    engine = Engine(model, TOKENIZER, blocks=40, block_size=3, token_budget=8, max_sequences=4)
    return [request.completions[0].tokens for request in engine.generate(prompts, GREEDY)]


@needs_triton
def test_an_engine_with_the_kernels_gives_the_same_greedy_tokens(monkeypatch):
    prompts, launches = [list(range(1, 14)), [7, 8], [5] * 6], []
    expected = generated(prompts)
    monkeypatch.setattr(paged_triton, "runs_kernels", lambda cache: True)
    run = TritonBatch._launch
    monkeypatch.setattr(
        TritonBatch, "_launch", lambda self, *given: launches.append(run(self, *given))
    )
    assert generated(prompts, MODEL.to(DEVICE)) == expected
    assert len(launches) > 10
    MODEL.cpu()


@needs_triton
@pytest.mark.slow
def test_the_kernels_compile_for_a100_and_h100_with_tensor_cores(tmp_path):
    environment = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    lines = python("-m", "tests.attention.compile_kernels", "paged", **environment)
    assert lines == [
        "paged_kernel 90 wgmma", "paged_kernel 80 mma", "merge_kernel 90", "merge_kernel 80",
    ]  # fmt: skip


# ---------------------------------------------------------------- on a GPU


@needs_triton
@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 700])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_real_sizes_are_as_exact_as_torch(dtype, head_dim, window, monkeypatch):
    monkeypatch.undo()
    sizes = [(1025, 1), (97, 97), (1500, 300), (4000, 1), (1, 1)]
    query, cache, layout, dense = example(
        sizes, dtype, heads=16, kv_heads=4, block_size=16, head_dim=head_dim
    )
    exact = densely([[each.double() for each in inputs] for inputs in dense], window=window)
    errors = [
        (function(query, *cache, *layout, window=window).double() - exact).norm()
        for function in (paged_attention_triton, paged_attention)
    ]
    assert errors[0] <= max(2 * errors[1], 1e-6 * exact.norm())


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
