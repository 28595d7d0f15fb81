"""Scaled dot-product attention as the formula states it, with the whole matrix of scores.

It is the reference for `flash`, the triton kernels and the caches.
"""

import torch
from torch import Tensor

from course_pkg.acceleration.attention.input_validation import check_attention
from course_pkg.acceleration.attention.masks import (
    ScoreMod,
    additive,
    indices,
    modified_scores,
    visible,
)
from course_pkg.acceleration.attention.philox import keep_mask


def attention(
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
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · query · keyᵀ) · value: (batch, heads, queries, value_dim).

    Computed in the type of the inputs: in 16 bits the scores are rounded before the softmax, and
    the probabilities after it. The query is scaled first, so that float16 scores overflow later.

    Args:
        query: (batch, heads, queries, head_dim); head h uses key head h // (heads // kv_heads).
        key: (batch, kv_heads, keys, head_dim).
        value: (batch, kv_heads, keys, value_dim).
        scale: head_dim ** −0.5 by default.
        causal, window, key_mask: see `masks.visible`. A query that sees no key has output 0.
        score_mod: changes the scaled scores, see `masks.modified_scores`; it may set some to −inf.
        dropout: the probability of zeroing a probability; the others are divided by 1 − dropout.
        seed: what `philox.keep_mask` draws from.
        return_lse: also return log Σ_j exp(score_ij) of every row, (batch, heads, queries), in at
            least float32; −inf for a query that sees no key. Gradients flow through both.

    Source: Vaswani et al. (2017), equation 1.

    Example:

        >>> query, key = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 4, 2)
        >>> output, lse = attention(query, key, torch.arange(4.0).view(1, 1, 4, 1), return_lse=True)
        >>> output.item(), round(lse.exp().item(), 4)  # the mean; exp(0) four times
        (1.5, 4.0)
    """
    check_attention(query, key, value, window=window, key_mask=key_mask, dropout=dropout)
    batch, heads, queries, head_dim = query.shape
    _, kv_heads, keys, value_dim = value.shape
    scaled = query * (head_dim**-0.5 if scale is None else scale)
    # Stack the queries of the heads that share a key head, so that no key is copied.
    stacked = scaled.reshape(batch, kv_heads, heads // kv_heads * queries, head_dim)
    scores = (stacked @ key.transpose(2, 3)).view(batch, heads, queries, keys)
    if score_mod is not None:
        scores = modified_scores(score_mod, scores, range(queries), range(keys), keys - queries)
    empty = None  # which rows see no key
    if causal or window is not None or key_mask is not None or score_mod is not None:
        seen = visible(
            queries, keys, causal=causal, window=window, key_mask=key_mask, device=query.device
        )
        scores = scores + additive(seen, scores.dtype)
        if score_mod is None:
            empty = ~seen.any(-1, keepdim=True)  # broadcasts to (batch, heads, queries, 1)
        else:  # score_mod may also have set a whole row to −inf
            empty = (scores == -torch.inf).all(-1, keepdim=True)
        if empty.any():
            scores = scores.masked_fill(empty, 0)  # a softmax over −inf alone is NaN
        else:
            empty = None
    probabilities = torch.softmax(scores, dim=-1).to(value.dtype)
    if empty is not None:
        probabilities = probabilities.masked_fill(empty, 0)
    if dropout:
        sizes = (batch * heads, queries, keys)
        head, row, column = (indices(range(size), query.device) for size in sizes)
        keep = keep_mask(seed, head[:, None, None], row[:, None], column, dropout)
        probabilities = probabilities.masked_fill(~keep.view(scores.shape), 0) / (1 - dropout)
    stacked = probabilities.view(batch, kv_heads, heads // kv_heads * queries, keys)
    output = (stacked @ value).view(batch, heads, queries, value_dim)
    if not return_lse:
        return output
    lse = scores.to(torch.promote_types(scores.dtype, torch.float32)).logsumexp(-1)
    if empty is not None:
        lse = lse.masked_fill(empty[..., 0], -torch.inf)
    return output, lse
