"""Checks of the arguments that every attention function of this folder takes.

Chapter: acceleration/flash-attention.
"""

from collections.abc import Callable, Sequence

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


def check_paged_batch(
    cache: tuple[torch.Tensor, torch.Tensor],
    tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
    query_starts: Sequence[int],
    window: int | None,
) -> None:
    """Raise ValueError unless tables, lengths and starts describe sequences in this cache.

    The arguments are those of `paged.PagedBatch`. Chapter: acceleration/paged-attention.

    >>> cache = torch.zeros(4, 1, 2, 8), torch.zeros(4, 1, 2, 8)
    >>> check_paged_batch(cache, [[3, 9]], [3], [0, 1], None)
    Traceback (most recent call last):
      ...
    ValueError: sequence 0: blocks [3, 9], the cache has 0 … 3
    """
    if cache[0].dim() != 4 or cache[0].shape != cache[1].shape:
        shapes = tuple(cache[0].shape), tuple(cache[1].shape)
        raise ValueError(f"{shapes} for a cache: expected (blocks, kv_heads, block_size, head_dim)")
    check_options(cache[0], window=window)
    if not len(tables) == len(lengths) == len(query_starts) - 1 or query_starts[0] != 0:
        raise ValueError(
            f"{len(tables)} tables, {len(lengths)} lengths and query_starts {list(query_starts)}: "
            "expected as many tables as lengths, and one start more, beginning with 0"
        )
    total, _, size, _ = cache[0].shape
    for index, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        queries = query_starts[index + 1] - query_starts[index]
        used = table[: -(-length // size)]
        if not 1 <= queries <= length <= len(used) * size:
            raise ValueError(
                f"sequence {index} has {queries} queries, length {length} and {len(table)} blocks "
                f"of {size}: expected at least 1 query, at most as many as tokens, and enough "
                "blocks for them"
            )
        if not all(0 <= block < total for block in used):
            raise ValueError(
                f"sequence {index}: blocks {list(used)}, the cache has 0 … {total - 1}"
            )


def check_packed_query(query: torch.Tensor, tokens: int, cache_shape: Sequence[int]) -> None:
    """Raise ValueError unless query is (tokens, heads, head_dim) and fits the cache.

    cache_shape: (blocks, kv_heads, block_size, head_dim). Chapter: acceleration/paged-attention.

    >>> check_packed_query(torch.zeros(3, 4, 8), 3, (9, 2, 16, 8))
    """
    kv_heads, head_dim = cache_shape[1], cache_shape[3]
    if query.shape[::2] != (tokens, head_dim) or query.shape[1] % kv_heads:
        raise ValueError(
            f"query {tuple(query.shape)} for {tokens} tokens and a cache {tuple(cache_shape)}: "
            f"expected (tokens, heads, head_dim), where heads is a multiple of {kv_heads}"
        )


def apply_hook(
    hook: ScoreHook,
    scores: torch.Tensor,
    head: torch.Tensor,
    query_position: torch.Tensor,
    key_position: torch.Tensor,
) -> torch.Tensor:
    """The scores (batch, heads, queries, keys) changed by `hook`, of the same shape, contiguous.

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
    if not changed.is_floating_point():  # such as a distance, an integer
        changed = changed.to(scores.dtype)
    return changed.contiguous()  # a hook may return a view; the callers stack heads with `view`
