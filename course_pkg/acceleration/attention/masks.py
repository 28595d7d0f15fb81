"""Masks and score modifications: what happens to a score before the softmax.

With fewer queries than keys, the last query is aligned with the last key (bottom-right), because
new tokens come last: query i stands at position i + keys − queries. torch's `is_causal=True` aligns
the first query with the first key instead (top-left).
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def visible(
    queries: int,
    keys: int,
    *,
    causal: bool = False,
    window: int | None = None,
    key_mask: Tensor | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """True where a query may attend to a key: bool, (1 or batch, 1, queries, keys).

    Args:
        causal: query i sees key j only if j ≤ i + keys − queries.
        window: only if j > i + keys − queries − window: with `causal`, a query sees itself and the
            window − 1 keys before it, as with flash-attn's window_size of (window − 1, 0).
        key_mask: (batch, keys), bool: True for a real key.
        device: of the result; by default, that of key_mask, otherwise the CPU.

    Example:

        >>> visible(2, 4, causal=True, window=2)[0, 0].int()
        tensor([[0, 1, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)
    """
    if device is None and key_mask is not None:
        device = key_mask.device
    positions = torch.arange(queries, device=device) + (keys - queries)
    seen = band(positions, torch.arange(keys, device=device), causal=causal, window=window)
    seen = seen[None, None]
    return seen if key_mask is None else seen & key_mask[:, None, None, :]


def band(
    query_positions: Tensor,
    key_positions: Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
) -> Tensor:
    """The part of visibility that depends on positions alone: bool, (queries, keys).

    Positions of queries are already shifted by keys − queries.
    """
    ahead = key_positions[None, :] - query_positions[:, None]  # (queries, keys)
    seen = ahead <= 0 if causal else torch.ones_like(ahead, dtype=torch.bool)
    return seen if window is None else seen & (ahead > -window)


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where visible and −inf where not, in `seen`'s shape: faster than a mask that broadcasts."""
    hidden = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return hidden.masked_fill_(~seen, -torch.inf)


def tile_state(
    i0: int, i1: int, j0: int, j1: int, offset: int, causal: bool, window: int | None
) -> Literal["skip", "full", "partial"]:
    """Whether the queries i0 … i1 − 1 see none, all or some of the keys j0 … j1 − 1.

    With d = j − i − offset, a pair is visible if d ≤ 0 (causal) and d > −window, and in a tile d
    takes every value between its smallest and its largest. Padding is not considered.

    Args:
        offset: keys − queries of the whole matrix.
    """
    smallest = j0 - (i1 - 1) - offset
    largest = (j1 - 1) - i0 - offset
    if i0 >= i1 or j0 >= j1:
        return "skip"
    if (causal and smallest > 0) or (window is not None and largest <= -window):
        return "skip"
    if (causal and largest > 0) or (window is not None and smallest <= -window):
        return "partial"
    return "full"


def modified_scores(
    score_mod: ScoreMod, scores: Tensor, queries: range, keys: range, offset: int
) -> Tensor:
    """The scores (batch, heads, queries, keys) of a tile changed by `score_mod`, contiguous.

    The function gets scores, head (heads, 1, 1), query position (queries, 1) and key position
    (keys,).

    Args:
        queries, keys: the tile's indices.
        offset: keys − queries of the whole matrix.
    """
    head = torch.arange(scores.shape[1], device=scores.device)[:, None, None]
    query_position = indices(queries, scores.device)[:, None] + offset
    changed = score_mod(scores, head, query_position, indices(keys, scores.device))
    if changed.shape != scores.shape:
        raise ValueError(
            f"score_mod returned shape {tuple(changed.shape)} for scores of shape "
            f"{tuple(scores.shape)}: it must return one score for each"
        )
    if not changed.is_floating_point():  # such as a distance, an integer
        changed = changed.to(scores.dtype)
    return changed.contiguous()  # it may be a view; the callers stack heads with `view`


def indices(block: range, device: torch.device) -> Tensor:
    """The numbers of a block of rows or columns, int64."""
    return torch.arange(block.start, block.stop, device=device)
