"""FlashAttention in plain PyTorch: attention in tiles, with an online softmax, and its gradient.

The backward pass recomputes the probabilities of a tile from the log-sum-exp of its rows.
"""

import torch
from torch import Tensor

from course_pkg.acceleration.attention.input_validation import check_attention
from course_pkg.acceleration.attention.masks import ScoreMod
from course_pkg.acceleration.attention.tiles import TileStep, Tiling, Watch, exp_
from course_pkg.common.arguments import require_integer

BLOCK_QUERIES = 256  # the fastest of those tried on a CPU with 1 MiB of L2 cache
BLOCK_KEYS = 512


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    key_mask: Tensor | None = None,
    score_mod: ScoreMod | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    return_lse: bool = False,
    block_queries: int = BLOCK_QUERIES,
    block_keys: int = BLOCK_KEYS,
    watch: Watch | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The output of `plain.attention`, computed tile by tile: (batch, heads, queries, value_dim).

    Fully masked tiles are skipped. float16 and bfloat16 inputs are computed in float32. It can't be
    differentiated twice, and a score_mod may not use a tensor that requires a gradient.

    Args:
        block_queries, block_keys: the size of a tile.
        watch: receives every step of the forward and backward pass.

    Source: Dao, "FlashAttention-2" (2023), algorithms 1 and 2.
    """
    check_attention(query, key, value, window=window, key_mask=key_mask, dropout=dropout)
    require_integer(block_queries, "block_queries")
    require_integer(block_keys, "block_keys")
    batch, heads, queries, head_dim = query.shape
    tiling = Tiling(
        batch=batch,
        heads=heads,
        kv_heads=key.shape[1],
        queries=queries,
        keys=key.shape[2],
        scale=head_dim**-0.5 if scale is None else scale,
        block_queries=block_queries,
        block_keys=block_keys,
        causal=causal,
        window=window,
        key_mask=key_mask,
        score_mod=score_mod,
        dropout=dropout,
        seed=seed,
        dtype=torch.promote_types(query.dtype, torch.float32),
        trainable=torch.is_grad_enabled(),
    )
    output, lse = _Flash.apply(query, key, value, tiling, watch or (lambda step: None))
    return (output, lse) if return_lse else output


class _Flash(torch.autograd.Function):
    """Connects the two passes; saves the inputs, the output and the log-sum-exp, nothing else."""

    @staticmethod
    def forward(ctx, query, key, value, tiling, watch):
        with torch.autocast(query.device.type, enabled=False):  # the tiles stay in tiling.dtype
            output, lse = _forward(query, key, value, tiling, watch)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.tiling = tiling
        ctx.watch = watch
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        if torch.is_grad_enabled():  # the result would silently be treated as a constant
            raise RuntimeError(
                "flash_attention can't be differentiated twice: call backward without "
                "create_graph=True, or use plain.attention"
            )
        query, key, value, output, lse = ctx.saved_tensors
        if grad_output is None:
            grad_output = torch.zeros_like(output)
        # Σ_j P_ij · dP_ij, the only sum over a row that the softmax's gradient needs, is also
        # Σ dO_i · O_i: a sum over value_dim numbers that are at hand.
        delta = (grad_output.to(lse.dtype) * output).sum(-1)
        if grad_lse is not None:
            delta -= grad_lse
        inputs = query, key, value, grad_output, lse, delta
        with torch.autocast(query.device.type, enabled=False):
            return *_backward(*inputs, ctx.tiling, ctx.watch), None, None


def _forward(
    query: Tensor, key: Tensor, value: Tensor, tiling: Tiling, watch: Watch
) -> tuple[Tensor, Tensor]:
    t = tiling
    output = query.new_empty(*query.shape[:3], value.shape[3])
    lse = query.new_empty(query.shape[:3], dtype=t.dtype)
    for rows in t.query_blocks():
        q = t.stack(query, rows) * t.scale  # (batch, kv_heads, group · rows, head_dim)
        maximum = q.new_full((*q.shape[:3], 1), -torch.inf)
        total = torch.zeros_like(maximum)
        partial = q.new_zeros(*q.shape[:3], value.shape[3])
        watch(TileStep("load", "forward", rows, range(0), q.numel()))
        for columns in t.key_blocks():
            if t.state(rows, columns) == "skip":
                watch(TileStep("skip", "forward", rows, columns))
                continue
            k = t.columns(key, columns)
            v = t.columns(value, columns)
            scores = t.scores(q, k, rows, columns)  # (batch, kv_heads, group · rows, columns)
            new_maximum = torch.maximum(maximum, scores.amax(-1, keepdim=True))
            finite = _or_zero(new_maximum)
            rescale = exp_(maximum - finite)
            weights = exp_(scores.sub_(finite))
            total = total * rescale + weights.sum(-1, keepdim=True)  # before dropout
            if t.dropout:
                weights.mul_(t.keep(rows, columns, weights.device))
            partial = partial * rescale + weights @ v
            maximum = new_maximum
            state = (t.unstack(part) for part in (maximum, rescale, total, partial))
            loaded = k.numel() + v.numel()
            watch(TileStep("tile", "forward", rows, columns, loaded, 0, *state))
        done = t.unstack(partial / total.masked_fill(total == 0, 1))
        here = slice(rows.start, rows.stop)
        output[:, :, here] = done
        lse[:, :, here] = t.unstack(_or_zero(maximum) + total.log())[..., 0]
        stored = done.numel() + total.numel()
        columns = range(t.keys)
        watch(TileStep("store", "forward", rows, columns, stored=stored, output=done))
    return output, lse


def _backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    grad_output: Tensor,
    lse: Tensor,
    delta: Tensor,
    tiling: Tiling,
    watch: Watch,
) -> tuple[Tensor, Tensor, Tensor]:
    t = tiling
    finite = _or_zero(lse)[..., None]  # (batch, heads, queries, 1); a row without keys has P = 0
    delta = delta[..., None]
    grad_query = torch.zeros_like(query, dtype=t.dtype)  # added to by every block of keys
    grad_key = torch.empty_like(key)
    grad_value = torch.empty_like(value)
    # Before the loops, output and its gradient were read to compute delta.
    read = 2 * grad_output.numel()
    watch(TileStep("load", "backward", range(t.queries), range(0), read, delta.numel()))
    for columns in t.key_blocks():
        k = t.columns(key, columns)
        v = t.columns(value, columns)
        block_grad_key = torch.zeros_like(k)
        block_grad_value = torch.zeros_like(v)
        watch(TileStep("load", "backward", range(0), columns, k.numel() + v.numel()))
        for rows in t.query_blocks():
            if t.state(rows, columns) == "skip":
                watch(TileStep("skip", "backward", rows, columns))
                continue
            q = t.stack(query, rows) * t.scale
            g = t.stack(grad_output, rows)
            scores, pullback = t.scores_and_pullback(q, k, rows, columns)
            weights = exp_(scores.sub_(t.stack(finite, rows)))  # P: (…, group · rows, columns)
            grad_weights = g @ v.mT
            if t.dropout:
                keep = t.keep(rows, columns, weights.device)
                block_grad_value += (weights * keep).mT @ g
                grad_weights.mul_(keep)
            else:
                block_grad_value += weights.mT @ g
            grad_scores = weights.mul_(grad_weights.sub_(t.stack(delta, rows)))
            grad_scores = pullback(grad_scores)
            block_grad_key += grad_scores.mT @ q
            here = slice(rows.start, rows.stop)
            grad_query[:, :, here] += t.unstack(grad_scores @ k)
            # Reads q, g, lse and delta; the gradient of q is read, added to and written.
            loaded = 2 * q.numel() + g.numel() + 2 * t.batch * t.heads * len(rows)
            watch(TileStep("tile", "backward", rows, columns, loaded, q.numel()))
        here = slice(columns.start, columns.stop)
        grad_key[:, :, here] = block_grad_key
        grad_value[:, :, here] = block_grad_value
        stored = k.numel() + v.numel()
        watch(TileStep("store", "backward", range(t.queries), columns, stored=stored))
    return grad_query.mul_(t.scale).to(query.dtype), grad_key, grad_value


def _or_zero(maximum: Tensor) -> Tensor:
    """The maximum or log-sum-exp, and 0 in place of −inf, which can't be subtracted from −inf."""
    return maximum.masked_fill(maximum == -torch.inf, 0)
