"""Greedy generation, with a cache and without: the same tokens, at different cost.

Without a cache, the step that follows n tokens computes all n again. With one, it computes only
the newest. Not here: sampling, and requests that start and end at different times.
Chapter: serving/kv-cache.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from course_pkg.lm.decoder import Decoder, causal_attend
from course_pkg.serving.kv_cache import KVCache


@torch.no_grad()
def generate(
    model: Decoder, ids: Tensor, new_tokens: int, cache: KVCache, *, stop: Collection[int] = ()
) -> Tensor:
    """The most likely next tokens, one after another: (batch, at most new_tokens).

    ids: (batch, tokens), the prompts, or what follows the tokens in the cache. The last new token
    is not in the cache afterwards, because nothing was computed from it. stop: ids that end a row;
    the rest of that row repeats its stop. Raises ValueError if ids or new_tokens is empty.

    >>> from course_pkg.lm.tiny import tiny_model
    >>> from course_pkg.serving.kv_cache import ContiguousCache
    >>> model, ids = Decoder.from_transformers(tiny_model()), torch.tensor([[1, 2, 3]])
    >>> cache = ContiguousCache(model.config)
    >>> generate(model, ids, 4, cache).tolist() == recompute(model, ids, 4).tolist()
    True
    >>> cache.tokens  # 3 + 4 - 1
    6
    """
    _check(ids, new_tokens)
    new = []
    for _ in range(new_tokens):
        logits = model(ids, cache.positions(ids.shape[1]), cache.attend, last_only=True)
        ids = _choose(logits, new, stop)  # (batch, 1)
        new.append(ids)
        if _ended(ids, stop).all():
            break
    return torch.cat(new, dim=1)  # (batch, new)


@torch.no_grad()
def recompute(
    model: Decoder,
    ids: Tensor,
    new_tokens: int,
    *,
    key_mask: Tensor | None = None,
    stop: Collection[int] = (),
) -> Tensor:
    """As `generate`, without a cache: every step computes all tokens again.

    key_mask: (batch, tokens), false at padding on the left of the prompts.
    """
    _check(ids, new_tokens)
    real = torch.ones_like(ids) if key_mask is None else key_mask.long()  # (batch, tokens)
    new = []
    for _ in range(new_tokens):
        attend = causal_attend(model.config, None if key_mask is None else real)
        positions = real.cumsum(1) - 1  # (batch, tokens), 0 at the first real token
        logits = model(ids, positions, attend, last_only=True)
        new.append(_choose(logits, new, stop))  # (batch, 1)
        if _ended(new[-1], stop).all():
            break
        ids = torch.cat((ids, new[-1]), dim=1)  # (batch, tokens + 1)
        real = torch.cat((real, torch.ones_like(new[-1])), dim=1)  # (batch, tokens + 1)
    return torch.cat(new, dim=1)  # (batch, new)


def _choose(logits: Tensor, new: list[Tensor], stop: Collection[int]) -> Tensor:
    """The token with the largest logit, (batch, 1); a row that has ended repeats its stop."""
    best = logits[:, -1].argmax(-1, keepdim=True)  # (batch, 1)
    return torch.where(_ended(new[-1], stop), new[-1], best) if new else best


def _ended(ids: Tensor, stop: Collection[int]) -> Tensor:
    return torch.isin(ids, torch.tensor(list(stop), dtype=ids.dtype, device=ids.device))


def _check(ids: Tensor, new_tokens: int) -> None:
    if ids.dim() != 2 or ids.shape[1] == 0 or new_tokens < 1:
        raise ValueError(
            f"ids has shape {tuple(ids.shape)}, and new_tokens is {new_tokens}: expected (batch, "
            "tokens) with at least one token, and at least 1"
        )
