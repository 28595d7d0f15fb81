"""Visibility: which keys a query may attend to, for the whole matrix or for one tile.

With fewer queries than keys, the last query is aligned with the last key (bottom-right), because
during generation the new tokens come last. Query i stands at position i + keys − queries.
torch's `is_causal=True` aligns the first query with the first key instead (top-left).
Chapter: acceleration/flash-attention.
"""

from typing import Literal

import torch


def visible(
    queries: int,
    keys: int,
    *,
    causal: bool = False,
    window: int | None = None,
    key_mask: torch.Tensor | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """True where a query may attend to a key: bool, (1 or batch, 1, queries, keys).

    Query i sees key j only if, of these conditions, all that are requested hold:
    causal: j ≤ i + keys − queries. window: j > i + keys − queries − window, so together with
    `causal` a query sees itself and the window − 1 keys before it. key_mask (batch, keys), bool:
    key_mask[batch, j], True for a real key. device: of the result; by default, that of key_mask,
    otherwise the CPU.
    Source: flash-attn's README, "2.1: Change behavior of causal flag"; its window_size of
    (window − 1, 0) is `window` with `causal`. Chapter: acceleration/flash-attention.

    >>> visible(2, 4, causal=True)[0, 0].int()
    tensor([[1, 1, 1, 0],
            [1, 1, 1, 1]], dtype=torch.int32)
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
    query_positions: torch.Tensor,
    key_positions: torch.Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
) -> torch.Tensor:
    """The part of visibility that depends on positions alone: bool, (queries, keys).

    query_positions: (queries,), already shifted by keys − queries; key_positions: (keys,). A slice
    of both gives the mask of one tile. Causal without a window is a triangle, with a window a band.
    Chapter: acceleration/flash-attention.

    >>> band(torch.tensor([5, 6]), torch.tensor([4, 5, 6]), causal=True, window=2).int()
    tensor([[1, 1, 0],
            [0, 1, 1]], dtype=torch.int32)
    """
    ahead = key_positions[None, :] - query_positions[:, None]  # (queries, keys)
    seen = ahead <= 0 if causal else torch.ones_like(ahead, dtype=torch.bool)
    return seen if window is None else seen & (ahead > -window)


def additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where visible and −inf where not, in `seen`'s shape, to be added to scores of this dtype.

    On a CPU, adding it is much faster than `masked_fill` with a mask that broadcasts.
    Chapter: acceleration/flash-attention.

    >>> additive(torch.tensor([True, False]), torch.float32)
    tensor([0., -inf])
    """
    hidden = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return hidden.masked_fill_(~seen, -torch.inf)


def tile_state(
    i0: int, i1: int, j0: int, j1: int, offset: int, causal: bool, window: int | None
) -> Literal["skip", "full", "partial"]:
    """Whether the queries i0 … i1 − 1 see none, all or some of the keys j0 … j1 − 1.

    offset: keys − queries of the whole matrix. Needs no tensor: with d = j − i − offset, a pair is
    visible if d ≤ 0 (causal) and d > −window, and in a tile d takes every value between its
    smallest and its largest. Padding masks are not considered. An empty tile is skipped.
    Chapter: acceleration/flash-attention.

    >>> [tile_state(4, 8, j, j + 4, 0, True, None) for j in (0, 4, 8)]
    ['full', 'partial', 'skip']
    """
    smallest, largest = j0 - (i1 - 1) - offset, (j1 - 1) - i0 - offset
    if i0 >= i1 or j0 >= j1:
        return "skip"
    if (causal and smallest > 0) or (window is not None and largest <= -window):
        return "skip"
    if (causal and largest > 0) or (window is not None and smallest <= -window):
        return "partial"
    return "full"
