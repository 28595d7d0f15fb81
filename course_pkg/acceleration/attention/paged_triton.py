"""Paged attention on a GPU: Triton kernels that read keys and values where their blocks are.

A program of `paged_kernel` computes one tile of rows of one key head; a row is one query in one of
the query heads that share it. With one query, a sequence gives few programs: its keys are split
into parts of PART_KEYS, which `merge_kernel` combines (flash-decoding). The size is fixed, so that
a result does not depend on the other sequences. Logarithms are to the base 2. Without a GPU the
kernels run in Triton's interpreter. No gradients.
Sources: Kwon et al. (2023), "PagedAttention", section 4.3; Dao et al. (2023), "Flash-Decoding".
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from course_pkg.acceleration.attention.input_validation import check_paged_query
from course_pkg.acceleration.attention.kernel_arguments import (
    LARGEST_HEAD_DIM,
    LOG2_E,
    TYPES,
    check_kernel_input,
    head_dims,
    rows,
    token_rows,
)
from course_pkg.acceleration.attention.paged import Cache, Numbers, PagedBatch
from course_pkg.common.triton_runtime import (
    INSTALLED,
    INTERPRETED,
    computed,
    larger,
    plus,
    tl,
    triton,
    with_adjacent_numbers,
)

MERGED = tl.constexpr(16)  # parts that the merging kernel reads at once


@triton.jit
def attend_blocks(
    q, key, value, head, table, out, top, total, start, end, positions, scale,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    WINDOW: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The online softmax over the keys start … end − 1 of a sequence, in steps of KEYS."""
    dims = tl.arange(0, PADDED_DIM)[None, :]
    for first in tl.range(start, end, KEYS):
        index = first + tl.arange(0, KEYS)
        read = index < end  # slots after the last key may hold anything, so they are not loaded
        block = tl.load(table + index // BLOCK_SIZE, mask=read, other=0).to(tl.int64)
        offset = index % BLOCK_SIZE
        loaded = (read[:, None] & (dims < HEAD_DIM)) if MASKED else (dims < HEAD_DIM)
        key_rows = block * key.batch + head * key.head + offset * key.row
        k = tl.load(key.pointer + key_rows[:, None] + dims, mask=loaded, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # (ROWS, KEYS)
        if MASKED:
            seen = read[None, :] & (index[None, :] <= positions[:, None])
            if WINDOW is not None:
                seen = seen & (index[None, :] > positions[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))

        new_top = tl.maximum(top, tl.reduce(scores, 1, larger))
        # A row that has seen no key yet: −inf − (−inf) would be NaN.
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.exp2(scores - shift[:, None])
        rescale = tl.exp2(top - shift)
        total = total * rescale + tl.reduce(p, 1, plus)
        top = new_top

        value_rows = block * value.batch + head * value.head + offset * value.row
        v = tl.load(value.pointer + value_rows[:, None] + dims, mask=loaded, other=0.0)
        out = tl.dot(p.to(v.dtype), v, out * rescale[:, None], input_precision="ieee")
    return out, top, total


@triton.jit(do_not_specialize=["parts", "part_keys"])
def paged_kernel(
    query, key, value, output, lse, spans, blocks, parts, part_keys, scale,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr, WINDOW: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """One tile of rows and one part of its keys. Grid: (tiles × parts, kv_heads, sequences).

    SPLIT: each sequence has one query, and output and lse, to the base 2, have its parts: (parts,
    heads, sequences, …). Otherwise output is (tokens, heads, …), and lse is None.
    """
    tile = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    head = tl.program_id(1).to(tl.int64)
    sequence = tl.program_id(2)
    token = tl.load(spans + 4 * sequence).to(tl.int64)  # its first in query
    queries = tl.load(spans + 4 * sequence + 1)
    length = tl.load(spans + 4 * sequence + 2)
    table = blocks + tl.load(spans + 4 * sequence + 3)

    row = tile * ROWS + tl.arange(0, ROWS)
    index = row // GROUP  # of the query in its sequence
    positions = length - queries + index
    first_position = length - queries + tile * ROWS // GROUP
    last_position = length - queries + (tile * ROWS + ROWS - 1) // GROUP
    start = part * part_keys
    if WINDOW is not None:
        start += tl.maximum(first_position - WINDOW + 1, 0)
    end = tl.minimum(tl.minimum(start + part_keys, last_position + 1), length)
    if (start >= end) | (tile * ROWS >= queries * GROUP):  # a shorter sequence than others
        return

    dims = tl.arange(0, PADDED_DIM)[None, :]
    query_head = head * GROUP + row % GROUP
    in_rows = (row < queries * GROUP)[:, None] & (dims < HEAD_DIM)
    query_rows = (token + index) * query.row + query_head * query.head
    q = tl.load(query.pointer + query_rows[:, None] + dims, mask=in_rows, other=0.0)

    out = tl.full((ROWS, PADDED_DIM), 0.0, tl.float32)
    top = tl.full((ROWS,), float("-inf"), tl.float32)  # running maximum of score · log2(e)
    total = tl.full((ROWS,), 0.0, tl.float32)  # running sum of 2 ** (score − top)
    whole = start  # keys before this are seen by all rows, in whole tiles
    if WINDOW is None:
        seen_by_all = tl.minimum(first_position + 1, end)
        whole += tl.maximum(seen_by_all - start, 0) // KEYS * KEYS
        out, top, total = attend_blocks(
            q, key, value, head, table, out, top, total, start, whole, positions, scale * LOG2_E,
            BLOCK_SIZE, HEAD_DIM, PADDED_DIM, WINDOW, KEYS, MASKED=False,
        )  # fmt: skip
    out, top, total = attend_blocks(
        q, key, value, head, table, out, top, total, whole, end, positions, scale * LOG2_E,
        BLOCK_SIZE, HEAD_DIM, PADDED_DIM, WINDOW, KEYS, MASKED=True,
    )  # fmt: skip

    total = tl.where(total == 0.0, 1.0, total)  # only in rows that are not stored
    out_row = token + index
    if SPLIT:
        out_row = sequence + index
        lse_row = part * lse.batch + query_head * lse.head + out_row * lse.row
        tl.store(lse.pointer + lse_row, top + tl.log2(total), mask=row < queries * GROUP)
    output_rows = part.to(tl.int64) * output.batch + query_head * output.head + out_row * output.row
    out = (out / total[:, None]).to(output.pointer.dtype.element_ty)
    tl.store(output.pointer + output_rows[:, None] + dims, out, mask=in_rows)


@triton.jit(do_not_specialize=["part_keys"])
def merge_kernel(
    partial, partial_lse, output, spans, part_keys,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """The online softmax once more, over the parts of one query. Grid: (sequences, heads)."""
    sequence = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    token = tl.load(spans + 4 * sequence).to(tl.int64)
    keys = tl.load(spans + 4 * sequence + 2)
    if WINDOW is not None:
        keys = tl.minimum(keys, WINDOW)
    dims = tl.arange(0, PADDED_DIM)
    out = tl.full((PADDED_DIM,), 0.0, tl.float32)
    top = tl.full((1,), float("-inf"), tl.float32)
    total = tl.full((1,), 0.0, tl.float32)
    parts = (keys + part_keys - 1) // part_keys
    for first in tl.range(0, parts, MERGED):
        part = first + tl.arange(0, MERGED)
        read = part < parts
        lse_row = part * partial_lse.batch + head * partial_lse.head + sequence
        exponent = tl.load(partial_lse.pointer + lse_row, mask=read, other=float("-inf"))
        row = part.to(tl.int64) * partial.batch + head * partial.head + sequence * partial.row
        loaded = read[:, None] & (dims < HEAD_DIM)[None, :]
        o = tl.load(partial.pointer + row[:, None] + dims[None, :], mask=loaded, other=0.0)
        new_top = tl.maximum(top, tl.reduce(exponent, 0, larger))
        weights = tl.exp2(exponent - new_top)
        rescale = tl.exp2(top - new_top)
        out = out * rescale + tl.reduce(weights[:, None] * o, 0, plus)
        total = total * rescale + tl.reduce(weights, 0, plus)
        top = new_top
    out = (out / total).to(output.pointer.dtype.element_ty)
    address = output.pointer + token * output.row + head * output.head + dims
    tl.store(address, out, mask=dims < HEAD_DIM)


PART_KEYS = 512  # keys that a program reads of a sequence that generates


def paged_attention_triton(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    tables: Sequence[Numbers],
    lengths: Numbers,
    query_starts: Numbers,
) -> Tensor:
    """The same as `paged.paged_attention`, by the kernels: (tokens, heads, head_dim).

    Tensors are float16, bfloat16 or float32, head_dim is at most 128. Scores and sums are float32;
    probabilities are rounded to the type of the inputs before they multiply the values.
    """
    cache = key_cache, value_cache
    return TritonBatch(cache, tables, lengths, query_starts).attend(query, cache)


def paged_batch(
    cache: Cache,
    tables: Sequence[Numbers],
    lengths: Numbers,
    query_starts: Numbers,
    *,
    window: int | None = None,
) -> PagedBatch:
    """The batch for this cache: of kernels on a GPU that take it, otherwise of `paged`."""
    kind = TritonBatch if runs_kernels(cache[0]) else PagedBatch
    return kind(cache, tables, lengths, query_starts, window=window)


def runs_kernels(cache: Tensor) -> bool:
    """Whether the kernels are compiled for the device, type and head_dim of a cache."""
    taken = cache.dtype in TYPES and cache.shape[-1] <= LARGEST_HEAD_DIM
    return INSTALLED and not INTERPRETED and cache.is_cuda and taken


class _Launch(NamedTuple):
    """The sequences of one launch: those that generate, or those with several queries."""

    spans: Tensor  # int32, (sequences, 4): first token, queries, length, first entry of its table
    queries: int  # the most of a sequence
    keys: int  # the most that a query sees


class TritonBatch(PagedBatch):
    """What the kernels need to know of one step, for all layers that have the same window."""

    def _grouped(
        self, cache: Cache, tables: Sequence[Numbers], lengths: Numbers, query_starts: Numbers
    ) -> list[_Launch]:
        device = cache[0].device
        size = self.shape[2]
        used = [table[: -(-n // size)] for table, n in zip(tables, lengths, strict=True)]
        blocks = [block for table in used for block in table]
        self.blocks = torch.tensor(blocks, dtype=torch.int32, device=device)
        entries = list(accumulate(map(len, used), initial=0))[:-1]
        bounds = pairwise(query_starts)
        spans = [
            (start, stop - start, length, entry)
            for (start, stop), length, entry in zip(bounds, lengths, entries, strict=True)
        ]
        generating = [span for span in spans if span[1] == 1]
        reading = [span for span in spans if span[1] > 1]
        launches = []
        for group in filter(None, (generating, reading)):
            keys = max(length for _, _, length, _ in group)
            if self.window is not None and group is generating:
                keys = min(keys, self.window)
            queries = max(queries for _, queries, _, _ in group)
            spans = torch.tensor(group, dtype=torch.int32, device=device)
            launches.append(_Launch(spans, queries, keys))
        return launches

    @torch.no_grad()
    def attend(self, query: Tensor, cache: Cache) -> Tensor:
        check_paged_query(query, self.tokens, self.shape)
        check_kernel_input(query, "query and cache", "course_pkg.acceleration.attention.paged")
        self._check_cache(query, cache)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        query = with_adjacent_numbers(computed(query))
        cache = tuple(map(computed, cache))
        with torch.cuda.device_of(query):  # kernels start on the current GPU, or on none
            for launch in self.groups:
                self._launch(launch, query, cache, output)
        return output

    def _launch(self, launch: _Launch, query: Tensor, cache: Cache, output: Tensor) -> None:
        _, kv_heads, block_size, head_dim = self.shape
        heads = query.shape[1]
        sequences = len(launch.spans)
        sizes = head_dims(head_dim) | {"WINDOW": self.window}
        most = launch.queries * heads // kv_heads  # rows of a sequence
        tile = _tile(most, query)
        tiles = triton.cdiv(most, tile["ROWS"])
        keys = PART_KEYS if launch.queries == 1 else launch.keys
        parts = triton.cdiv(launch.keys, keys)
        targets = token_rows(output), None
        if parts > 1:
            shape = (parts, heads, sequences)
            partial = query.new_empty((*shape, head_dim), dtype=torch.float32)
            targets = rows(partial), rows(query.new_empty(shape, dtype=torch.float32))
        paged_kernel[tiles * parts, kv_heads, sequences](
            token_rows(query),
            *map(rows, cache),
            *targets,
            launch.spans,
            self.blocks,
            parts,
            keys,
            head_dim**-0.5,
            GROUP=heads // kv_heads,
            BLOCK_SIZE=block_size,
            SPLIT=parts > 1,
            **sizes,
            **tile,
        )
        if parts > 1:
            merge_kernel[sequences, heads](
                *targets, token_rows(output), launch.spans, keys, **sizes
            )

    def _check_cache(self, query: Tensor, cache: Cache) -> None:
        for tensor in cache:
            if tensor.dtype != query.dtype or tensor.device != query.device:
                raise TypeError(
                    f"query is {query.dtype} on {query.device}, a cache {tensor.dtype} on "
                    f"{tensor.device}: give all of one type on one device"
                )
            if tensor.shape != self.shape or tensor.stride(3) != 1:
                raise ValueError(
                    f"a cache {tuple(tensor.shape)} with strides {tensor.stride()} for a batch of "
                    f"{tuple(self.shape)}: give this shape, and the numbers of a slot adjacent"
                )


def _tile(most: int, query: Tensor) -> dict[str, int]:
    """Rows and keys of a tile, for sequences of at most `most` rows, and how it is computed."""
    if INTERPRETED:
        return {"ROWS": 16, "KEYS": 16}
    largest = 32 if query.dtype == torch.float32 else 64
    several = {"ROWS": min(largest, max(16, triton.next_power_of_2(most))), "KEYS": largest}
    return several | {"num_warps": 4, "num_stages": 2}
