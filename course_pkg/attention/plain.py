"""Scaled dot-product attention as the formula states it, with the whole matrix of scores.

It is the reference for `flash`, the triton kernels and the caches. It needs memory for
queries × keys scores in every head. Chapter: acceleration/flash-attention.
"""

import torch

from .arguments import ScoreHook, apply_hook, check_options, check_tensors
from .masks import additive, visible
from .philox import keep_mask


def attention(
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
) -> torch.Tensor:
    """softmax(scale · query · keyᵀ) · value: (batch, heads, queries, value_dim).

    query: (batch, heads, queries, head_dim); key: (batch, kv_heads, keys, head_dim); value: (batch,
    kv_heads, keys, value_dim). Query head h uses key head h // (heads // kv_heads).
    scale: head_dim ** −0.5 by default. causal, window, key_mask: see `masks.visible`. A query that
    sees no key has output 0 and gradient 0.
    score_hook(scores, head, query_position, key_position): returns changed scores; called on the
    scaled scores with the indices (heads, 1, 1), (queries, 1) and (keys,), where a query's position
    is its index + keys − queries. It may set scores to −inf.
    dropout: the probability of zeroing a probability after the softmax; the others are divided by
    1 − dropout. Which are zeroed depends on `seed` alone, see `philox.keep_mask`.

    Precision: computed in the type of the inputs, as a direct PyTorch program is: in bfloat16 or
    float16 the scores are rounded to that type before the softmax, and the probabilities after it.
    This error of the formula at a given precision is what the error of other implementations is
    compared with. For exact values, pass float64. The query is scaled before the product, so that
    float16 scores overflow later.
    Raises ValueError or TypeError for arguments that don't fit. Source: Vaswani et al. (2017),
    equation 1. Chapter: acceleration/flash-attention.

    >>> query, key = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 4, 2)
    >>> attention(query, key, torch.arange(4.0).view(1, 1, 4, 1)).item()  # a mean
    1.5
    """
    scores, empty = _scores(query, key, value, scale, causal, window, key_mask, score_hook, dropout)
    return _weighted_values(scores, empty, value, dropout, seed)


def attention_with_lse(
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output of `attention` and the log-sum-exp of every row of scores.

    Takes the arguments of `attention`. The log-sum-exp is log Σ_j exp(score_ij), shape (batch,
    heads, queries), in float32 (float64 for float64 inputs), and −inf for a query that sees no key.
    Gradients flow through both results. Chapter: acceleration/flash-attention.

    >>> query, key = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 4, 2)
    >>> output, lse = attention_with_lse(query, key, key)
    >>> round(lse.exp().item(), 4)  # exp(0) four times
    4.0
    """
    scores, empty = _scores(query, key, value, scale, causal, window, key_mask, score_hook, dropout)
    lse = scores.to(torch.promote_types(scores.dtype, torch.float32)).logsumexp(-1)
    if empty is not None:
        lse = lse.masked_fill(empty[..., 0], -torch.inf)
    return _weighted_values(scores, empty, value, dropout, seed), lse


def _scores(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    causal: bool,
    window: int | None,
    key_mask: torch.Tensor | None,
    score_hook: ScoreHook | None,
    dropout: float,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scores (batch, heads, queries, keys), −inf where masked, and which rows see no key.

    The scores of those rows are 0, because a softmax over −inf alone is NaN. The second result is
    bool and broadcasts to (batch, heads, queries, 1), or is None if every row sees a key.
    """
    check_tensors(query, key, value)
    check_options(key, window=window, key_mask=key_mask, dropout=dropout)
    batch, heads, queries, head_dim = query.shape
    kv_heads, keys = key.shape[1:3]
    scaled = query * (head_dim**-0.5 if scale is None else scale)
    # Stack the queries of the heads that share a key head, so that no key is copied.
    stacked = scaled.reshape(batch, kv_heads, heads // kv_heads * queries, head_dim)
    scores = (stacked @ key.transpose(2, 3)).view(batch, heads, queries, keys)
    if score_hook is not None:
        positions = torch.arange(max(queries, keys), device=query.device)
        head, position = positions.new_tensor(range(heads)), positions[:queries] + keys - queries
        index = head[:, None, None], position[:, None], positions[:keys]
        scores = apply_hook(score_hook, scores, *index)
    if not (causal or window is not None or key_mask is not None or score_hook is not None):
        return scores, None
    seen = visible(
        queries, keys, causal=causal, window=window, key_mask=key_mask, device=query.device
    )
    scores = scores + additive(seen, scores.dtype)
    if score_hook is None:
        empty = ~seen.any(-1, keepdim=True)
    else:  # the hook too may have set a whole row to −inf
        empty = (scores == -torch.inf).all(-1, keepdim=True)
    return (scores.masked_fill(empty, 0), empty) if empty.any() else (scores, None)


def _weighted_values(
    scores: torch.Tensor,
    empty: torch.Tensor | None,
    value: torch.Tensor,
    dropout: float,
    seed: int,
) -> torch.Tensor:
    """Softmax over the keys, dropout, and the product with the values."""
    batch, heads, queries, keys = scores.shape
    kv_heads, value_dim = value.shape[1], value.shape[3]
    probabilities = torch.softmax(scores, dim=-1).to(value.dtype)
    if empty is not None:
        probabilities = probabilities.masked_fill(empty, 0)
    if dropout:
        index = [torch.arange(n, device=value.device) for n in (batch * heads, queries, keys)]
        keep = keep_mask(seed, index[0][:, None, None], index[1][:, None], index[2], dropout)
        kept = probabilities.masked_fill(~keep.view(scores.shape), 0)
        probabilities = kept / (1 - dropout)
    stacked = probabilities.view(batch, kv_heads, heads // kv_heads * queries, keys)
    return (stacked @ value).view(batch, heads, queries, value_dim)
