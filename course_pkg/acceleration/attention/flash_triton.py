"""FlashAttention-2 on a GPU: Triton kernels behind a function that autograd can differentiate.

Forward: one program computes one tile of queries of one head, and keeps the running maximum, the
running sum and the unnormalized output in registers (online softmax). exp(s) is computed as
2 ** (s · log2(e)). Backward, with P recomputed tile by tile and D = rowsum(dO ∘ O)::

    dV = Pᵀ dO,    dS = P ∘ (dO Vᵀ − D),    dQ = scale · dS K,    dK = scale · dSᵀ Q.

Scores are computed twice, for dK and dV and for dQ, but one program writes each gradient: no atomic
additions, and the same bits in each run. Without a GPU the kernels run in Triton's interpreter.
Source: Dao (2023), FlashAttention-2, algorithms 1 and 2.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from course_pkg.acceleration.attention.input_validation import check_attention
from course_pkg.acceleration.attention.kernel_arguments import (
    LN_2,
    LOG2_E,
    check_kernel_input,
    head_dims,
    rows,
    tile_shapes,
    tuning_key,
    worth_trying,
)
from course_pkg.common.triton_runtime import (
    computed,
    larger,
    plus,
    tl,
    triton,
    with_adjacent_numbers,
)


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


def flash_attention_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The output of `plain.attention`, by the kernels: (batch, heads, queries, head_dim).

    Tensors are float16, bfloat16 or float32; head_dim is at most 128, also that of the values;
    scale is above 0. Scores and sums are float32; probabilities are rounded to the type of the
    inputs before they multiply the values. The first call on a GPU with new sizes compiles and
    times several tiles.
    """
    check_attention(query, key, value)
    if value.shape[-1] != query.shape[-1]:
        raise ValueError(
            f"value has head_dim {value.shape[-1]} and query {query.shape[-1]}: the kernels take "
            "equal ones; use course_pkg.acceleration.attention.flash"
        )
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if not scale > 0:
        raise ValueError(f"scale is {scale}: the kernels take only a scale above 0")
    check_kernel_input(query, "query, key and value", "course_pkg.acceleration.attention.flash")
    inputs = map(computed, (query, key, value))
    with torch.cuda.device_of(query):  # kernels start on the current GPU, or on none
        output, lse = _FlashAttention.apply(*inputs, scale, causal)
    output = output.to(query.dtype)
    return (output, lse) if return_lse else output


class _FlashAttention(torch.autograd.Function):
    """The kernels as one differentiable operation; it saves the log-sum-exp, and no scores."""

    @staticmethod
    def forward(ctx, query, key, value, scale, causal):
        query, key, value = map(with_adjacent_numbers, (query, key, value))
        batch, heads, queries, head_dim = query.shape
        _, kv_heads, keys, _ = key.shape
        output = torch.empty_like(query)
        lse = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.set_materialize_grads(False)
        ctx.sizes = queries, keys, heads // kv_heads, scale, tuning_key(max(queries, keys), query)
        ctx.constants = head_dims(head_dim) | {"CAUSAL": causal}

        if query.numel() > 0:  # a grid may not be empty
            tensors = map(rows, (query, key, value, output, lse))
            grid = _grid(queries, "BLOCK_QUERIES", heads, batch)
            forward_kernel[grid](*tensors, *ctx.sizes, **ctx.constants)
        return output, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, grad_lse):
        query, key, value, output, lse = ctx.saved_tensors
        batch, heads, queries, head_dim = query.shape
        _, kv_heads, keys, _ = key.shape
        if grad_output is None:
            grad_output = torch.zeros_like(output)
        grad_output = with_adjacent_numbers(grad_output)
        gradients = [torch.empty_like(tensor) for tensor in (query, key, value)]
        grad_query, grad_key, grad_value = map(rows, gradients)
        row_sums = torch.empty_like(lse)
        tensors = [rows(tensor) for tensor in (query, key, value, grad_output, lse, row_sums)]

        query_grid = _grid(queries, "BLOCK_QUERIES", heads, batch)
        key_grid = _grid(keys, "BLOCK_KEYS", kv_heads, batch)
        if query.numel() > 0:
            summed = map(rows, (output, grad_output, row_sums))
            row_sums_kernel[query_grid](*summed, queries, BLOCK_QUERIES=64, **head_dims(head_dim))
            if grad_lse is not None:  # d lse / dS = P, so its gradient is subtracted from D
                row_sums -= grad_lse
            query_gradients_kernel[query_grid](*tensors, grad_query, *ctx.sizes, **ctx.constants)
        if key.numel() > 0:
            key_gradients_kernel[key_grid](
                *tensors, grad_key, grad_value, *ctx.sizes, **ctx.constants
            )
        return *gradients, None, None


def _grid(tokens: int, block: str, heads: int, batch: int) -> Callable[[dict], tuple]:
    """A program for each block of tokens, head and sequence; `block` names a block's size."""
    return lambda config: (triton.cdiv(tokens, config[block]), heads, batch)
