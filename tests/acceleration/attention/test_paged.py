"""Attention through block tables equals dense attention, whatever is in the other slots.

Torch's program and the kernels, which run in the interpreter on a CPU: a part has 8 keys there, a
tile 16 rows and 16 keys.
"""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.acceleration.attention import paged_triton
from course_pkg.acceleration.attention.paged import PagedBatch, write
from course_pkg.acceleration.attention.paged_triton import TritonBatch
from course_pkg.acceleration.attention.plain import attention
from tests.refusals import require_refusals
from tests.tolerance import rounding

from .examples import DEVICE, needs_triton

BOTH = pytest.mark.parametrize(
    ("batch_type", "dtype"),
    [
        pytest.param(PagedBatch, torch.float64, id="torch"),
        pytest.param(TritonBatch, torch.float32, id="kernels", marks=needs_triton),
    ],
)


@pytest.fixture(autouse=True)
def parts_of_8_keys(monkeypatch):
    monkeypatch.setattr(paged_triton, "PART_KEYS", 8)


def scattered(sizes, kv_heads=2, block_size=4, head_dim=8, heads=4, dtype=torch.float64):
    """Caches in which all but the sequences' slots are NaN, packed queries, and dense inputs.

    sizes: the length and the number of queries of each sequence.
    """
    generator = torch.Generator().manual_seed(0)
    needed = [-(-length // block_size) for length, _ in sizes]
    numbers = (torch.randperm(sum(needed) + 2, generator=generator) + 1).tolist()
    tables = [[numbers.pop() for _ in range(count)] for count in needed]
    shape = (sum(needed) + 3, kv_heads, block_size, head_dim)
    cache = torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype)
    starts = [0]
    queries = []
    dense = []
    for table, (length, count) in zip(tables, sizes, strict=True):
        key, value = torch.randn(2, length, kv_heads, head_dim, generator=generator).to(dtype)
        index = torch.arange(length)
        slots = torch.tensor(table)[index // block_size] * block_size + index % block_size
        write(cache, key, value, slots)
        queries.append(torch.randn(count, heads, head_dim, generator=generator).to(dtype))
        starts.append(starts[-1] + count)
        dense.append([tensor.transpose(0, 1)[None] for tensor in (queries[-1], key, value)])
    cache = tuple(tensor.to(DEVICE) for tensor in cache)
    dense = [[tensor.to(DEVICE) for tensor in inputs] for inputs in dense]
    layout = tables, [length for length, _ in sizes], starts
    return torch.cat(queries).to(DEVICE), cache, layout, dense


def densely(dense, **options):
    """Each sequence by itself: (tokens, heads, head_dim)."""
    outputs = [attention(*inputs, causal=True, **options) for inputs in dense]
    return torch.cat([output[0].transpose(0, 1) for output in outputs])


def attend(batch_type, query, cache, layout, window=None):
    return batch_type(cache, *layout, window=window).attend(query, cache)


def assert_equals_dense(result, dense, **options):
    """Only the order of additions differs, of a query's keys, after those of 8 products.

    Values of both signs may add up to almost nothing, so the unit is at least that of one value.
    """
    share = rounding(max(key.shape[2] for _, key, _ in dense) + 8, result.dtype)
    exact = densely([[tensor.double() for tensor in inputs] for inputs in dense], **options)
    largest = max(tensor.abs().max() for inputs in dense for tensor in inputs)
    assert (result - exact).norm() <= share * max(exact.norm(), largest)


MIXED = [(9, 1), (9, 9), (23, 5), (4, 4), (1, 1), (5, 5), (16, 1), (17, 1), (30, 12), (9, 9)]


@BOTH
@pytest.mark.parametrize(
    ("heads", "window"),
    [
        *(((4, 2), window) for window in (None, 1, 3)),
        ((3, 3), None),
        ((9, 3), 12),
        ((4, 1), 3),
        ((18, 1), 5),  # the heads of one query are in two tiles
    ],
)
def test_prompts_chunks_and_generation_in_one_batch(batch_type, dtype, heads, window):
    query, cache, layout, dense = scattered(MIXED, heads=heads[0], kv_heads=heads[1], dtype=dtype)
    result = attend(batch_type, query, cache, layout, window)
    assert_equals_dense(result, dense, window=window)


LENGTHS = st.integers(1, 40)


@BOTH
@given(
    st.lists(LENGTHS.flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))), min_size=1),
    st.integers(1, 20),
    st.none() | st.integers(1, 45),
    st.sampled_from([1, 8, 24]),
)
@settings(max_examples=20)
def test_any_lengths_block_sizes_windows_and_head_dims(
    batch_type, dtype, sizes, block_size, window, head_dim
):
    sizes = sizes[: 3 if batch_type is TritonBatch else 8]
    query, cache, layout, dense = scattered(
        sizes, block_size=block_size, head_dim=head_dim, heads=2, kv_heads=1, dtype=dtype
    )
    result = attend(batch_type, query, cache, layout, window)
    assert_equals_dense(result, dense, window=window)


@BOTH
@pytest.mark.parametrize("filler", [torch.nan, torch.inf])
def test_slots_that_no_query_sees_change_nothing(batch_type, dtype, filler):
    query, cache, (tables, lengths, starts), dense = scattered(
        [(22, 1), (20, 3), (6, 2)], dtype=dtype
    )
    for tensor in cache:
        tensor[tensor.isnan()] = filler
    unit = 4 if batch_type is PagedBatch else 1  # torch's program reads whole blocks
    for table, first_seen in zip(tables, (18, 14, 1), strict=True):  # with a window of 4
        for token in range(first_seen // unit * unit):
            for tensor in cache:
                tensor[table[token // 4], :, token % 4] = filler
    result = attend(batch_type, query, cache, (tables, lengths, starts), window=4)
    assert_equals_dense(result, dense, window=4)


@BOTH
def test_a_table_may_be_longer_than_its_sequence(batch_type, dtype):
    query, cache, (tables, lengths, starts), dense = scattered([(9, 2), (3, 1)], dtype=dtype)
    longer = [[*table, 999] for table in tables]
    result = attend(batch_type, query, cache, (longer, lengths, starts))
    assert_equals_dense(result, dense)


@pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=needs_triton)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_error_is_at_most_twice_that_of_the_dense_computation(kernels, dtype):
    batch_type = PagedBatch
    sizes = [(1025, 1), (97, 97), (1023, 40), (640, 1)]
    if kernels:
        batch_type = TritonBatch
        sizes = [(97, 1), (33, 33), (40, 7)]
    query, cache, layout, dense = scattered(sizes, head_dim=64, block_size=16, dtype=dtype)
    exact = densely([[tensor.double() for tensor in inputs] for inputs in dense])
    result = attend(batch_type, query, cache, layout)
    # Where the dense computation happens to be almost exact, twice its error is no bound: sums of
    # up to 1,025 keys may be in any order.
    least = rounding(1025) * exact.norm()
    bound = max(2 * (densely(dense).double() - exact).norm(), least)
    assert result.dtype == dtype and (result.double() - exact).norm() <= bound


@BOTH
def test_a_sequence_does_not_depend_on_the_others(batch_type, dtype):
    query, cache, (tables, lengths, starts), _ = scattered(MIXED, dtype=torch.float32)
    together = attend(batch_type, query, cache, (tables, lengths, starts))
    for i, (start, stop) in enumerate(pairwise(starts)):
        layout = [tables[i]], [lengths[i]], [0, stop - start]
        alone = attend(batch_type, query[start:stop], cache, layout)
        torch.testing.assert_close(together[start:stop], alone)
        if batch_type is TritonBatch and stop - start == 1:
            assert torch.equal(together[start:stop], alone)  # fixed parts: the same bits


@BOTH
def test_an_empty_batch(batch_type, dtype):
    query = torch.zeros(0, 4, 8, device=DEVICE, dtype=dtype)
    cache = torch.zeros(2, 2, 4, 8, device=DEVICE, dtype=dtype)
    assert attend(batch_type, query, (cache, cache), ([], [], [0])).shape == (0, 4, 8)


CACHE = torch.zeros(4, 2, 4, 8)


@pytest.mark.parametrize("batch_type", [PagedBatch, TritonBatch])
def test_a_batch_that_does_not_fit(batch_type):
    require_refusals(
        ([[1]], [1, 2], [0, 1], "1 tables, 2 lengths and query_starts"),
        ([[1]], [1], [1, 2], "one start more, beginning with 0"),
        ([[1]], [3], [0, 0], "sequence 0 has 0 queries, length 3 and 1 blocks of 4: expected at"),
        ([[1]], [2], [0, 3], "sequence 0 has 3 queries, length 2"),
        ([[1], [2]], [2, 5], [0, 1, 2], "sequence 1 has 1 queries, length 5 and 1 blocks of 4"),
        ([[4]], [2], [0, 1], r"sequence 0: blocks \[4\], the cache has 0 … 3"),
        ([[-1]], [2], [0, 1], r"sequence 0: blocks \[-1\]"),
        of=lambda *layout: batch_type((CACHE, CACHE), *layout),
    )


@pytest.mark.parametrize("batch_type", [PagedBatch, TritonBatch])
def test_tensors_that_do_not_fit(batch_type):
    layout = [[1]], [2], [0, 1]
    with pytest.raises(ValueError, match="window must be an integer of at least 1, got 0"):
        batch_type((CACHE, CACHE), *layout, window=0)
    with pytest.raises(ValueError, match=r"expected \(blocks, kv_heads, block_size, head_dim\)"):
        batch_type((CACHE, CACHE[:1]), *layout)
    for shape in ((2, 4, 8), (1, 3, 8), (1, 4, 7)):
        with pytest.raises(ValueError, match=r"for 1 tokens and a cache .* a multiple of 2"):
            batch_type((CACHE, CACHE), *layout).attend(torch.zeros(shape), (CACHE, CACHE))


def test_writing_what_does_not_fit():
    with pytest.raises(ValueError, match=r"for 2 slots of a cache .*, \(2, 2, 8\)"):
        write((CACHE, CACHE), torch.zeros(1, 2, 8), torch.zeros(1, 2, 8), torch.tensor([4, 5]))
