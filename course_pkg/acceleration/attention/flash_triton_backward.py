"""The backward pass of FlashAttention-2 as three Triton kernels.

With P = exp(scale · Q Kᵀ − lse), recomputed tile by tile, and D = rowsum(dO ∘ O):
    dV = Pᵀ dO,    dS = P ∘ (dO Vᵀ − D),    dQ = scale · dS K,    dK = scale · dSᵀ Q.
`row_sums_kernel` computes D. `key_gradients_kernel` keeps a tile of dK and dV in registers and
walks over the queries that see it, in every query head that shares the key head.
`query_gradients_kernel` keeps a tile of dQ and walks over the keys. Scores are computed twice, but
every gradient has one program that writes it: no atomic additions, and the same bits in each run.
Source: Dao (2023), FlashAttention-2, algorithm 2. Chapter: acceleration/flash-attention.
"""

from course_pkg.acceleration.attention.flash_triton_forward import tile, visible_keys
from course_pkg.acceleration.attention.kernel_arguments import LOG2_E, tile_shapes, worth_trying
from course_pkg.common.triton_runtime import plus, tl, triton


@triton.jit
def row_sums_kernel(
    output, grad_output, row_sums, queries,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_QUERIES: tl.constexpr,
):  # fmt: skip
    """D, one number for each query: the sum of dO ∘ O over its row. Grid: (tiles, heads, batch)."""
    first_query = tl.program_id(0) * BLOCK_QUERIES
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    index = first_query + tl.arange(0, BLOCK_QUERIES)
    in_rows = (index < queries)[:, None] & (tl.arange(0, PADDED_DIM) < HEAD_DIM)[None, :]
    output_tile = tile(output, batch, head, first_query, BLOCK_QUERIES, PADDED_DIM)
    grad_tile = tile(grad_output, batch, head, first_query, BLOCK_QUERIES, PADDED_DIM)
    out = tl.load(output_tile, in_rows, 0.0).to(tl.float32)
    sums = tl.reduce(out * tl.load(grad_tile, in_rows, 0.0).to(tl.float32), 1, plus)
    sums_row = row_sums.pointer + batch * row_sums.batch + head * row_sums.head
    tl.store(sums_row + index, sums, mask=index < queries)


@triton.jit
def add_to_key_gradients(
    dk, dv, k, v, query_tile, grad_tile, query_step, grad_step, lse_row, sums_row, start, end,
    index, queries, keys, scale, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add what the queries start … end − 1 of one head contribute to a tile of dK and dV."""
    in_row = (tl.arange(0, PADDED_DIM) < HEAD_DIM)[None, :]
    for first in tl.range(start, end, BLOCK_QUERIES):
        i = first + tl.arange(0, BLOCK_QUERIES)
        loaded = in_row & (i < queries)[:, None]
        q = tl.load(query_tile + tl.cast(first, tl.int64) * query_step, mask=loaded, other=0.0)
        scores = tl.dot(k, tl.trans(q), input_precision="ieee")  # (BLOCK_KEYS, BLOCK_QUERIES)
        lse = tl.load(lse_row + i, mask=i < queries, other=0.0)  # past the end, dO and D are 0 too
        p = tl.exp2(scores * (scale * LOG2_E) - (lse * LOG2_E)[None, :])
        if MASKED:
            p = tl.where(index[:, None] <= (i + keys - queries)[None, :], p, 0.0)
        do = tl.load(grad_tile + tl.cast(first, tl.int64) * grad_step, mask=loaded, other=0.0)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")
        sums = tl.load(sums_row + i, mask=i < queries, other=0.0)
        ds = p * (dp - sums[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    return dk, dv


@triton.autotune(
    configs=tile_shapes(
        (32, 32, 4, 2), (32, 64, 4, 2), (32, 64, 4, 3), (64, 64, 4, 2), (64, 64, 8, 2),
        (64, 128, 8, 2), (64, 128, 8, 3), (32, 128, 8, 3), (128, 64, 8, 2),
    ),
    key=["tuning", "HEAD_DIM", "CAUSAL"],
    prune_configs_by={"early_config_prune": worth_trying},
)  # fmt: skip
@triton.jit
def key_gradients_kernel(
    query, key, value, grad_output, lse, row_sums, grad_key, grad_value, queries, keys, group,
    scale, tuning, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """dK and dV of one tile of keys. Grid: (tiles, key heads, batch)."""
    first_key = tl.program_id(0) * BLOCK_KEYS
    kv_head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    index = first_key + tl.arange(0, BLOCK_KEYS)
    in_rows = (index < keys)[:, None] & (tl.arange(0, PADDED_DIM) < HEAD_DIM)[None, :]
    k = tl.load(tile(key, batch, kv_head, first_key, BLOCK_KEYS, PADDED_DIM), in_rows, 0.0)
    v = tl.load(tile(value, batch, kv_head, first_key, BLOCK_KEYS, PADDED_DIM), in_rows, 0.0)
    dk = tl.full((BLOCK_KEYS, PADDED_DIM), 0.0, tl.float32)
    dv = tl.full((BLOCK_KEYS, PADDED_DIM), 0.0, tl.float32)

    start = 0  # the first query that sees a key of this tile, in whole tiles
    whole = 0  # from here on, every query sees every key of this tile
    if CAUSAL:
        start = tl.maximum(first_key + queries - keys, 0) // BLOCK_QUERIES * BLOCK_QUERIES
        last_sees = tl.maximum(first_key + BLOCK_KEYS - 1 + queries - keys, 0)
        blocks = (last_sees + BLOCK_QUERIES - 1) // BLOCK_QUERIES
        whole = tl.minimum(blocks * BLOCK_QUERIES, queries)
    for member in range(group):  # the query heads that share this key head
        head = kv_head * group + member
        query_tile = tile(query, batch, head, 0, BLOCK_QUERIES, PADDED_DIM)
        grad_tile = tile(grad_output, batch, head, 0, BLOCK_QUERIES, PADDED_DIM)
        lse_row = lse.pointer + batch * lse.batch + head * lse.head
        sums_row = row_sums.pointer + batch * row_sums.batch + head * row_sums.head
        if CAUSAL:
            dk, dv = add_to_key_gradients(
                dk, dv, k, v, query_tile, grad_tile, query.row, grad_output.row, lse_row, sums_row,
                start, whole, index, queries, keys, scale, HEAD_DIM, PADDED_DIM, BLOCK_QUERIES,
                MASKED=True,
            )  # fmt: skip
        dk, dv = add_to_key_gradients(
            dk, dv, k, v, query_tile, grad_tile, query.row, grad_output.row, lse_row, sums_row,
            whole, queries, index, queries, keys, scale, HEAD_DIM, PADDED_DIM, BLOCK_QUERIES,
            MASKED=False,
        )  # fmt: skip

    grad_key_tile = tile(grad_key, batch, kv_head, first_key, BLOCK_KEYS, PADDED_DIM)
    grad_value_tile = tile(grad_value, batch, kv_head, first_key, BLOCK_KEYS, PADDED_DIM)
    tl.store(grad_key_tile, (dk * scale).to(k.dtype), mask=in_rows)
    tl.store(grad_value_tile, dv.to(v.dtype), mask=in_rows)


@triton.jit
def add_to_query_gradients(
    dq, q, do, lse, sums, key_tile, value_tile, key_step, value_step, start, end, positions, keys,
    scale, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add what the keys start … end − 1 contribute to a tile of dQ."""
    in_row = (tl.arange(0, PADDED_DIM) < HEAD_DIM)[None, :]
    for first in tl.range(start, end, BLOCK_KEYS):
        j = first + tl.arange(0, BLOCK_KEYS)
        loaded = in_row & (j < keys)[:, None] if MASKED else in_row
        k = tl.load(key_tile + tl.cast(first, tl.int64) * key_step, mask=loaded, other=0.0)
        v = tl.load(value_tile + tl.cast(first, tl.int64) * value_step, mask=loaded, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_QUERIES, BLOCK_KEYS)
        p = tl.exp2(scores * (scale * LOG2_E) - (lse * LOG2_E)[:, None])
        if MASKED:
            seen = (j < keys)[None, :]
            if CAUSAL:
                seen = seen & (j[None, :] <= positions[:, None])
            p = tl.where(seen, p, 0.0)
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - sums[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    return dq


@triton.autotune(
    configs=tile_shapes(
        (32, 32, 4, 2), (64, 32, 4, 2), (64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 2),
        (128, 64, 8, 3), (128, 128, 8, 2), (128, 32, 4, 2),
    ),
    key=["tuning", "HEAD_DIM", "CAUSAL"],
    prune_configs_by={"early_config_prune": worth_trying},
)  # fmt: skip
@triton.jit
def query_gradients_kernel(
    query, key, value, grad_output, lse, row_sums, grad_query, queries, keys, group, scale, tuning,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """dQ of one tile of queries. Grid: (tiles, heads, batch)."""
    first_query = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_QUERIES
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    index = first_query + tl.arange(0, BLOCK_QUERIES)
    in_rows = (index < queries)[:, None] & (tl.arange(0, PADDED_DIM) < HEAD_DIM)[None, :]
    grad_tile = tile(grad_output, batch, head, first_query, BLOCK_QUERIES, PADDED_DIM)
    q = tl.load(tile(query, batch, head, first_query, BLOCK_QUERIES, PADDED_DIM), in_rows, 0.0)
    do = tl.load(grad_tile, in_rows, 0.0)
    lse_row = lse.pointer + batch * lse.batch + head * lse.head
    sums_row = row_sums.pointer + batch * row_sums.batch + head * row_sums.head
    row_lse = tl.load(lse_row + index, mask=index < queries, other=0.0)
    sums = tl.load(sums_row + index, mask=index < queries, other=0.0)
    key_tile = tile(key, batch, head // group, 0, BLOCK_KEYS, PADDED_DIM)
    value_tile = tile(value, batch, head // group, 0, BLOCK_KEYS, PADDED_DIM)

    dq = tl.full((BLOCK_QUERIES, PADDED_DIM), 0.0, tl.float32)
    seen_by_all, seen_by_last = visible_keys(first_query, queries, keys, CAUSAL, BLOCK_QUERIES)
    whole = seen_by_all // BLOCK_KEYS * BLOCK_KEYS
    positions = index + keys - queries
    dq = add_to_query_gradients(
        dq, q, do, row_lse, sums, key_tile, value_tile, key.row, value.row, 0, whole, positions,
        keys, scale, HEAD_DIM, PADDED_DIM, BLOCK_KEYS, CAUSAL, MASKED=False,
    )  # fmt: skip
    dq = add_to_query_gradients(
        dq, q, do, row_lse, sums, key_tile, value_tile, key.row, value.row, whole, seen_by_last,
        positions, keys, scale, HEAD_DIM, PADDED_DIM, BLOCK_KEYS, CAUSAL, MASKED=True,
    )  # fmt: skip
    grad_query_tile = tile(grad_query, batch, head, first_query, BLOCK_QUERIES, PADDED_DIM)
    tl.store(grad_query_tile, (dq * scale).to(q.dtype), mask=in_rows)
