"""FlashAttention in plain PyTorch: attention in tiles, with an online softmax, and its gradient.

No tensor has queries × keys elements. The forward pass keeps a running maximum, denominator and
output for a block of queries while it walks over blocks of keys; the backward pass recomputes the
probabilities of a tile from the log-sum-exp of its rows. The order of the loops is that of
FlashAttention-2. This module does not fuse operations: on a GPU each of them still writes its
tile to slow memory. `flash_triton` contains fused kernels. Chapter: acceleration/flash-attention.
"""

import torch

from .arguments import ScoreHook, check_block_sizes, check_options, check_tensors
from .tiles import Step, Tiling, Watch, exp_

BLOCK_QUERIES, BLOCK_KEYS = 256, 512  # the fastest of those tried on a CPU with 1 MiB of L2 cache


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    key_mask: torch.Tensor | None = None,
    score_hook: ScoreHook | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    block_queries: int = BLOCK_QUERIES,
    block_keys: int = BLOCK_KEYS,
    watch: Watch | None = None,
) -> torch.Tensor:
    """The output of `plain.attention`, computed tile by tile: (batch, heads, queries, value_dim).

    Takes the arguments of `plain.attention` and block_queries, block_keys: the size of a tile, at
    least 1; watch: a function that receives every step (`tiles.Step`) of the forward and backward
    pass. Tiles that nobody sees are skipped. float16 and bfloat16 inputs are computed in float32,
    tile by tile. The backward pass needs query, key, value, output and one number per row; it can't
    be differentiated again (RuntimeError). A score_hook is called on tiles and must return a new
    tensor; if it uses a tensor that requires a gradient, it is refused.
    In float32, the rounded log-sum-exp adds a relative error of |lse| · 2⁻²⁴ to the probabilities
    of a row in the backward pass, which matters only if a row has few other errors.
    Raises ValueError or TypeError for arguments that don't fit. Source: Dao, "FlashAttention-2"
    (2023), algorithms 1 and 2. Chapter: acceleration/flash-attention.

    >>> query, key = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 4, 2)
    >>> value = torch.arange(4.0).view(1, 1, 4, 1)
    >>> flash_attention(query, key, value, block_keys=2, watch=lambda step: print(
    ...     step.kind, step.keys, step.output)).item()
    load range(0, 0) None
    tile range(0, 2) tensor([[[[1.]]]])
    tile range(2, 4) tensor([[[[6.]]]])
    store range(0, 4) tensor([[[[1.5000]]]])
    1.5
    """
    return flash_attention_with_lse(
        query, key, value, scale=scale, causal=causal, window=window, key_mask=key_mask,
        score_hook=score_hook, dropout=dropout, seed=seed, block_queries=block_queries,
        block_keys=block_keys, watch=watch,
    )[0]  # fmt: skip


def flash_attention_with_lse(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    key_mask: torch.Tensor | None = None,
    score_hook: ScoreHook | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    block_queries: int = BLOCK_QUERIES,
    block_keys: int = BLOCK_KEYS,
    watch: Watch | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output of `flash_attention` and the log-sum-exp of every row of scores.

    The log-sum-exp has shape (batch, heads, queries), in float32 (float64 for float64 inputs), and
    is −inf for a query that sees no key. Gradients flow through both.
    Chapter: acceleration/flash-attention.

    >>> query, key = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 4, 2)
    >>> output, lse = flash_attention_with_lse(query, key, key, block_keys=3)
    >>> round(lse.exp().item(), 4)  # exp(0) four times
    4.0
    """
    check_tensors(query, key, value)
    check_options(key, window=window, key_mask=key_mask, dropout=dropout)
    check_block_sizes(block_queries, block_keys)
    batch, heads, queries, head_dim = query.shape
    tiling = Tiling(
        batch=batch, heads=heads, kv_heads=key.shape[1], queries=queries, keys=key.shape[2],
        scale=head_dim**-0.5 if scale is None else scale, block_queries=block_queries,
        block_keys=block_keys, causal=causal, window=window, key_mask=key_mask,
        score_hook=score_hook, dropout=dropout, seed=seed,
        dtype=torch.promote_types(query.dtype, torch.float32), trainable=torch.is_grad_enabled(),
    )  # fmt: skip
    return _Flash.apply(query, key, value, tiling, watch or _ignore)


def _ignore(step: Step) -> None:
    """The default of `watch`."""


class _Flash(torch.autograd.Function):
    """Connects the two passes; saves the inputs, the output and the log-sum-exp, nothing else."""

    @staticmethod
    def forward(ctx, query, key, value, tiling, watch):
        with torch.autocast(query.device.type, enabled=False):  # the tiles stay in tiling.dtype
            output, lse = _forward(query, key, value, tiling, watch)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.tiling, ctx.watch = tiling, watch
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
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tiling: Tiling, watch: Watch
) -> tuple[torch.Tensor, torch.Tensor]:
    t = tiling
    output = query.new_empty(*query.shape[:3], value.shape[3])
    lse = query.new_empty(query.shape[:3], dtype=t.dtype)
    for rows in t.query_blocks():
        q = t.stack(query, rows) * t.scale  # (batch, kv_heads, group · rows, head_dim)
        maximum = q.new_full((*q.shape[:3], 1), -torch.inf)
        total = torch.zeros_like(maximum)
        partial = q.new_zeros(*q.shape[:3], value.shape[3])
        watch(Step("load", "forward", rows, range(0), q.numel()))
        for columns in t.key_blocks():
            if t.state(rows, columns) == "skip":
                watch(Step("skip", "forward", rows, columns))
                continue
            k, v = t.columns(key, columns), t.columns(value, columns)
            scores = t.scores(q, k, rows, columns)  # (batch, kv_heads, group · rows, columns)
            previous, maximum = maximum, torch.maximum(maximum, scores.amax(-1, keepdim=True))
            finite = _or_zero(maximum)
            rescale = exp_(previous - finite)
            weights = exp_(scores.sub_(finite))
            total = total * rescale + weights.sum(-1, keepdim=True)  # before dropout
            if t.dropout:
                weights.mul_(t.keep(rows, columns, weights.device))
            partial = partial * rescale + weights @ v
            state = (t.unstack(each) for each in (maximum, rescale, total, partial))
            watch(Step("tile", "forward", rows, columns, k.numel() + v.numel(), 0, *state))
        done = t.unstack(partial / total.masked_fill(total == 0, 1))
        here = slice(rows.start, rows.stop)
        output[:, :, here] = done
        lse[:, :, here] = t.unstack(_or_zero(maximum) + total.log())[..., 0]
        stored = done.numel() + total.numel()
        watch(Step("store", "forward", rows, range(t.keys), stored=stored, output=done))
    return output, lse


def _backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad_output: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    tiling: Tiling,
    watch: Watch,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    t = tiling
    finite = _or_zero(lse)[..., None]  # (batch, heads, queries, 1); a row without keys has P = 0
    delta = delta[..., None]
    grad_query = torch.zeros_like(query, dtype=t.dtype)  # added to by every block of keys
    grad_key, grad_value = torch.empty_like(key), torch.empty_like(value)
    # Before the loops, output and its gradient were read to compute delta.
    read = 2 * grad_output.numel()
    watch(Step("load", "backward", range(t.queries), range(0), read, delta.numel()))
    for columns in t.key_blocks():
        k, v = t.columns(key, columns), t.columns(value, columns)
        block_grad_key, block_grad_value = torch.zeros_like(k), torch.zeros_like(v)
        watch(Step("load", "backward", range(0), columns, k.numel() + v.numel()))
        for rows in t.query_blocks():
            if t.state(rows, columns) == "skip":
                watch(Step("skip", "backward", rows, columns))
                continue
            q, g = t.stack(query, rows) * t.scale, t.stack(grad_output, rows)
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
            watch(Step("tile", "backward", rows, columns, loaded, q.numel()))
        here = slice(columns.start, columns.stop)
        grad_key[:, :, here], grad_value[:, :, here] = block_grad_key, block_grad_value
        stored = k.numel() + v.numel()
        watch(Step("store", "backward", range(t.queries), columns, stored=stored))
    return grad_query.mul_(t.scale).to(query.dtype), grad_key, grad_value


def _or_zero(maximum: torch.Tensor) -> torch.Tensor:
    """The maximum or log-sum-exp, and 0 in place of −inf, which can't be subtracted from −inf."""
    return maximum.masked_fill(maximum == -torch.inf, 0)
