"""The checks of arguments that attention functions share."""

from collections.abc import Sequence

import torch
from torch import Tensor

from course_pkg.common.arguments import require_between, require_integer


def check_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    window: int | None = None,
    key_mask: Tensor | None = None,
    dropout: float = 0.0,
) -> None:
    """Raise ValueError or TypeError unless these are the arguments of one attention call."""
    if not (
        query.dim() == key.dim() == value.dim() == 4
        and query.shape[0] == key.shape[0]
        and key.shape[:3] == value.shape[:3]
        and query.shape[3] == key.shape[3] > 0
        and key.shape[1] > 0
        and query.shape[1] % key.shape[1] == 0
    ):
        raise ValueError(
            f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}: "
            "expected (batch, heads, queries, head_dim), (batch, kv_heads, keys, head_dim) and "
            "(batch, kv_heads, keys, value_dim), with heads a multiple of kv_heads and head_dim "
            "at least 1"
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
    check_window(window)
    require_between(dropout, "dropout", 0, 1, closed=True)
    if key_mask is None:
        return
    if key_mask.dtype != torch.bool:
        raise TypeError(
            f"key_mask has type {key_mask.dtype}: give bool, True for a real key "
            "(`attention_mask.bool()` converts a tokenizer's mask)"
        )
    expected = key.shape[0], key.shape[2]
    if key_mask.shape != expected or key_mask.device != key.device:
        raise ValueError(
            f"key_mask is {tuple(key_mask.shape)} on {key_mask.device}: expected (batch, keys), "
            f"here {expected}, on {key.device}"
        )


def check_window(window: int | None) -> None:
    """Raise ValueError unless the window is None or at least 1: a query always sees itself."""
    if window is not None:
        require_integer(window, "window")


def check_paged_batch(
    cache: tuple[Tensor, Tensor],
    tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
    query_starts: Sequence[int],
    window: int | None,
) -> None:
    """Raise ValueError unless tables, lengths and starts describe sequences in this cache."""
    if cache[0].dim() != 4 or cache[0].shape != cache[1].shape:
        shapes = tuple(cache[0].shape), tuple(cache[1].shape)
        raise ValueError(f"{shapes} for a cache: expected (blocks, kv_heads, block_size, head_dim)")
    check_window(window)
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


def check_paged_query(query: Tensor, tokens: int, cache_shape: Sequence[int]) -> None:
    """Raise ValueError unless query is (tokens, heads, head_dim) and fits the cache."""
    kv_heads = cache_shape[1]
    head_dim = cache_shape[3]
    if query.shape[::2] != (tokens, head_dim) or query.shape[1] % kv_heads:
        raise ValueError(
            f"query {tuple(query.shape)} for {tokens} tokens and a cache {tuple(cache_shape)}: "
            f"expected (tokens, heads, head_dim), where heads is a multiple of {kv_heads}"
        )
