"""The forward pass of FlashAttention-2 as a Triton kernel.

One program computes one tile of queries of one head: it loads the queries once, walks over the
tiles of keys and values that they see, and keeps the running maximum, the running sum and the
unnormalized output in registers (online softmax). Of a causal matrix it skips the tiles above the
diagonal, and masks only those on the diagonal or at the end. exp(s) is computed as
2 ** (s · log2(e)), for which GPUs have an instruction.
Source: Dao (2023), FlashAttention-2, algorithm 1. Chapter: acceleration/flash-attention.
"""

from course_pkg.acceleration.attention.kernel_arguments import (
    LN_2,
    LOG2_E,
    tile_shapes,
    worth_trying,
)
from course_pkg.common.triton_runtime import larger, plus, tl, triton


@triton.jit
def tile(tensor, batch, head, row, BLOCK: tl.constexpr, PADDED_DIM: tl.constexpr):
    """The addresses of BLOCK rows of one head, from `row` on: (BLOCK, PADDED_DIM)."""
    first_row = tl.cast(row, tl.int64) * tensor.row
    first = tensor.pointer + (batch * tensor.batch + head * tensor.head + first_row)
    return first + tl.arange(0, BLOCK)[:, None] * tensor.row + tl.arange(0, PADDED_DIM)[None, :]


@triton.jit
def visible_keys(first_query, queries, keys, CAUSAL: tl.constexpr, BLOCK_QUERIES: tl.constexpr):
    """How many keys every query of a tile sees, and how many its last query sees."""
    seen_by_all = keys
    seen_by_last = keys
    if CAUSAL:  # query i sees the keys up to i + keys − queries
        seen_by_all = tl.minimum(tl.maximum(first_query + 1 + keys - queries, 0), keys)
        seen_by_last = tl.minimum(tl.maximum(first_query + BLOCK_QUERIES + keys - queries, 0), keys)
    return seen_by_all, seen_by_last


@triton.jit
def attend(
    q, key_tile, value_tile, key_step, value_step, out, top, total, start, end, positions, keys,
    scale, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The online softmax over the keys start … end − 1, in steps of BLOCK_KEYS."""
    in_row = (tl.arange(0, PADDED_DIM) < HEAD_DIM)[None, :]
    for first in tl.range(start, end, BLOCK_KEYS):
        index = first + tl.arange(0, BLOCK_KEYS)
        loaded = in_row & (index < keys)[:, None] if MASKED else in_row
        k = tl.load(key_tile + tl.cast(first, tl.int64) * key_step, mask=loaded, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_QUERIES, BLOCK_KEYS)
        if MASKED:
            seen = (index < keys)[None, :]
            if CAUSAL:
                seen = seen & (index[None, :] <= positions[:, None])
            scores = tl.where(seen, scores, float("-inf"))

        new_top = tl.maximum(top, tl.reduce(scores, 1, larger) * scale)
        shift = new_top
        if MASKED:  # a row that has seen no key yet: −inf − (−inf) would be NaN
            shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.exp2(scores * scale - shift[:, None])
        rescale = tl.exp2(top - shift)
        total = total * rescale + tl.reduce(p, 1, plus)
        top = new_top

        v = tl.load(value_tile + tl.cast(first, tl.int64) * value_step, mask=loaded, other=0.0)
        out = tl.dot(p.to(v.dtype), v, out * rescale[:, None], input_precision="ieee")
    return out, top, total


@triton.autotune(
    configs=tile_shapes(  # queries, keys, warps, stages
        (32, 32, 4, 2), (64, 64, 4, 3), (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2),
        (128, 128, 8, 3), (128, 32, 4, 4),
    ),
    key=["tuning", "HEAD_DIM", "CAUSAL"],
    prune_configs_by={"early_config_prune": worth_trying},
)  # fmt: skip
@triton.jit
def forward_kernel(
    query, key, value, output, lse, queries, keys, group, scale, tuning,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Output and log-sum-exp of one tile of queries. Grid: (tiles, heads, batch)."""
    # The last tile sees the most keys if causal: start with it, so that the GPU ends evenly.
    first_query = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_QUERIES
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    index = first_query + tl.arange(0, BLOCK_QUERIES)
    in_rows = (index < queries)[:, None] & (tl.arange(0, PADDED_DIM) < HEAD_DIM)[None, :]
    query_tile = tile(query, batch, head, first_query, BLOCK_QUERIES, PADDED_DIM)
    key_tile = tile(key, batch, head // group, 0, BLOCK_KEYS, PADDED_DIM)
    value_tile = tile(value, batch, head // group, 0, BLOCK_KEYS, PADDED_DIM)

    q = tl.load(query_tile, mask=in_rows, other=0.0)
    out = tl.full((BLOCK_QUERIES, PADDED_DIM), 0.0, tl.float32)
    top = tl.full((BLOCK_QUERIES,), float("-inf"), tl.float32)  # running maximum, times log2(e)
    total = tl.full((BLOCK_QUERIES,), 0.0, tl.float32)  # running sum of 2 ** (score − top)
    seen_by_all, seen_by_last = visible_keys(first_query, queries, keys, CAUSAL, BLOCK_QUERIES)
    whole = seen_by_all // BLOCK_KEYS * BLOCK_KEYS  # tiles of keys before this need no mask
    positions = index + keys - queries
    out, top, total = attend(
        q, key_tile, value_tile, key.row, value.row, out, top, total, 0, whole, positions, keys,
        scale * LOG2_E, HEAD_DIM, PADDED_DIM, BLOCK_KEYS, CAUSAL, MASKED=False,
    )  # fmt: skip
    out, top, total = attend(
        q, key_tile, value_tile, key.row, value.row, out, top, total, whole, seen_by_last,
        positions, keys, scale * LOG2_E, HEAD_DIM, PADDED_DIM, BLOCK_KEYS, CAUSAL, MASKED=True,
    )  # fmt: skip

    total = tl.where(total == 0.0, 1.0, total)  # a row that sees no key: output 0, lse −∞
    out = out / total[:, None]
    output_tile = tile(output, batch, head, first_query, BLOCK_QUERIES, PADDED_DIM)
    tl.store(output_tile, out.to(output.pointer.dtype.element_ty), mask=in_rows)
    lse_row = lse.pointer + batch * lse.batch + head * lse.head + index
    tl.store(lse_row, (top + tl.log2(total)) * LN_2, mask=index < queries)
