"""Paged attention as a Triton kernel, and one that merges parts of a long context.

A program of `paged_kernel` computes one tile of rows of one key head. A row is one query in one
head, and the query heads that share a key head are rows of one tile. The program looks up the block
of each key in the sequence's table, and goes on as FlashAttention does. With one query, a sequence
gives few programs: its keys are split into parts, which `merge_kernel` combines by their
log-sum-exp (flash-decoding). Logarithms and exponentials are to the base 2.
Sources: Kwon et al. (2023), "PagedAttention", section 4.3; Dao et al. (2023), "Flash-Decoding".
Chapter: acceleration/paged-attention.
"""

from course_pkg.acceleration.attention.kernel_arguments import LN_2, LOG2_E
from course_pkg.common.triton_runtime import larger, plus, tl, triton

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
    heads, sequences, …). Otherwise they are (tokens, heads, …), and lse may be None.
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
    if lse is not None:
        log_sum = top + tl.log2(total)
        if not SPLIT:
            log_sum = log_sum * LN_2
        lse_row = part * lse.batch + query_head * lse.head + out_row * lse.row
        tl.store(lse.pointer + lse_row, log_sum, mask=row < queries * GROUP)
    output_rows = part.to(tl.int64) * output.batch + query_head * output.head + out_row * output.row
    out = (out / total[:, None]).to(output.pointer.dtype.element_ty)
    tl.store(output.pointer + output_rows[:, None] + dims, out, mask=in_rows)


@triton.jit(do_not_specialize=["part_keys"])
def merge_kernel(
    partial, partial_lse, output, lse, spans, part_keys,
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
    if lse is not None:
        address = lse.pointer + token * lse.row + head * lse.head + tl.arange(0, 1)
        tl.store(address, (top + tl.log2(total)) * LN_2)
