"""Checks of the arguments that every attention function of this folder takes.

Chapter: acceleration/flash-attention.
"""

from collections.abc import Callable

import torch

ScoreHook = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def check_tensors(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Raise unless the three tensors fit together.

    query: (batch, heads, queries, head_dim); key: (batch, kv_heads, keys, head_dim);
    value: (batch, kv_heads, keys, value_dim), where heads is a multiple of kv_heads. Raises
    ValueError for shapes or devices that don't fit, TypeError for types that don't.
    Chapter: acceleration/flash-attention.

    >>> check_tensors(torch.ones(1, 4, 3, 8), torch.ones(1, 2, 5, 8), torch.ones(1, 2, 5, 8))
    >>> check_tensors(torch.ones(1, 4, 3, 8), torch.ones(1, 3, 5, 8), torch.ones(1, 3, 5, 8))
    Traceback (most recent call last):
      ...
    ValueError: query has 4 heads and key has 3: ...
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}: it must have 4 dimensions, "
                "(batch, heads, tokens, head_dim)"
            )
    if key.shape[:3] != value.shape[:3]:
        raise ValueError(
            f"key has shape {tuple(key.shape)} and value {tuple(value.shape)}: batch, heads and "
            "tokens must be equal"
        )
    if query.shape[0] != key.shape[0]:
        raise ValueError(
            f"query has batch size {query.shape[0]} and key {key.shape[0]}: they must be equal"
        )
    if query.shape[3] != key.shape[3] or query.shape[3] == 0:
        raise ValueError(
            f"query has head_dim {query.shape[3]} and key {key.shape[3]}: "
            "they must be equal and at least 1"
        )
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise ValueError(
            f"query has {query.shape[1]} heads and key has {key.shape[1]}: the number of query "
            "heads must be a multiple of the number of key heads"
        )
    if not query.dtype == key.dtype == value.dtype or not query.dtype.is_floating_point:
        raise TypeError(
            f"query, key and value have types {query.dtype}, {key.dtype} and {value.dtype}: "
            "convert them to one floating-point type"
        )
    if not query.device == key.device == value.device:
        raise ValueError(
            f"query, key and value are on {query.device}, {key.device} and {value.device}: "
            "move them to one device"
        )


def check_options(
    key: torch.Tensor,
    *,
    window: int | None = None,
    key_mask: torch.Tensor | None = None,
    dropout: float = 0.0,
) -> None:
    """Raise unless window, key_mask and dropout are valid for this key tensor.

    window: at least 1, or None; key_mask: bool, (batch, keys), on the device of `key`, or None;
    dropout: in [0, 1). Raises ValueError for values and shapes, TypeError for types.
    Chapter: acceleration/flash-attention.

    >>> check_options(torch.ones(1, 2, 5, 8), window=0)
    Traceback (most recent call last):
      ...
    ValueError: window is 0: give at least 1 (a query always sees itself), or None for no window
    """
    if window is not None and window < 1:
        raise ValueError(
            f"window is {window}: give at least 1 (a query always sees itself), "
            "or None for no window"
        )
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout}: give a probability of at least 0 and below 1")
    if key_mask is None:
        return
    if key_mask.dtype != torch.bool:
        raise TypeError(
            f"key_mask has type {key_mask.dtype}: give bool, True for a real key "
            "(`attention_mask.bool()` converts a tokenizer's mask)"
        )
    if key_mask.shape != (key.shape[0], key.shape[2]):
        raise ValueError(
            f"key_mask has shape {tuple(key_mask.shape)}: it must be (batch, keys), "
            f"here {(key.shape[0], key.shape[2])}"
        )
    if key_mask.device != key.device:
        raise ValueError(
            f"key_mask is on {key_mask.device} and key on {key.device}: move them to one device"
        )


def check_block_sizes(block_queries: int, block_keys: int) -> None:
    """Raise ValueError unless a tile has at least one query and one key.

    Chapter: acceleration/flash-attention.

    >>> check_block_sizes(64, 0)
    Traceback (most recent call last):
      ...
    ValueError: block_queries is 64 and block_keys 0: give at least 1
    """
    if block_queries < 1 or block_keys < 1:
        raise ValueError(
            f"block_queries is {block_queries} and block_keys {block_keys}: give at least 1"
        )


def apply_hook(
    hook: ScoreHook,
    scores: torch.Tensor,
    head: torch.Tensor,
    query_position: torch.Tensor,
    key_position: torch.Tensor,
) -> torch.Tensor:
    """The scores (batch, heads, queries, keys) changed by `hook`, of the same shape.

    head: (heads, 1, 1); query_position: (queries, 1); key_position: (keys,), all int64. Raises
    ValueError if the hook returns another shape. Chapter: acceleration/flash-attention.

    >>> scores, index = torch.tensor([[[[30.0]]]]), torch.zeros(1, 1, 1, dtype=torch.long)
    >>> apply_hook(lambda s, *_: 20 * (s / 20).tanh(), scores, index, index[0], index[0, 0])
    tensor([[[[18.1030]]]])
    """
    changed = hook(scores, head, query_position, key_position)
    if changed.shape != scores.shape:
        raise ValueError(
            f"score_hook returned shape {tuple(changed.shape)} for scores of shape "
            f"{tuple(scores.shape)}: it must return one score for each"
        )
    return changed
