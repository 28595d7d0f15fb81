"""Attention through block tables, for the packed tokens of several sequences.

A cache is a pair of tensors for one layer, keys and values, each (blocks, kv_heads, block_size,
head_dim). Token t of a sequence is in block table[t // block_size] at t % block_size; its slot is
the number block · block_size + offset. A sequence's queries are its last tokens, whose keys and
values `write` has put in the cache. No gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from course_pkg.acceleration.attention.input_validation import check_paged_batch, check_paged_query

Cache = tuple[Tensor, Tensor]  # keys and values of one layer
Numbers = Sequence[int]


class Places(NamedTuple):
    """Where slots are: their blocks, and their offsets in them; (tokens,) each."""

    block: Tensor
    offset: Tensor


def write(cache: Cache, keys: Tensor, values: Tensor, slots: Tensor | Places) -> None:
    """Put keys and values of new tokens, (tokens, kv_heads, head_dim), into their slots, (tokens,).

    Args:
        slots: the numbers, or `places` of them, computed once for all layers.

    Example:

        >>> cache = torch.zeros(3, 1, 2, 1), torch.zeros(3, 1, 2, 1)
        >>> write(cache, torch.ones(1, 1, 1), torch.ones(1, 1, 1), torch.tensor([5]))
        >>> cache[0].flatten().tolist()  # slot 5 is in block 2
        [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    """
    block, offset = slots if isinstance(slots, tuple) else places(slots, cache[0].shape[2])
    expected = (len(block), cache[0].shape[1], cache[0].shape[3])
    if keys.shape != expected or values.shape != expected:
        raise ValueError(
            f"keys {tuple(keys.shape)} and values {tuple(values.shape)} for {len(block)} slots of "
            f"a cache {tuple(cache[0].shape)}: expected (tokens, kv_heads, head_dim), {expected}"
        )
    cache[0][block, :, offset] = keys
    cache[1][block, :, offset] = values


def places(slots: Tensor, block_size: int) -> Places:
    """The blocks and offsets of slots, (tokens,)."""
    return Places(block=slots // block_size, offset=slots % block_size)


def copy_blocks(source: Cache, target: Cache, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy whole blocks, (source, target) numbers, within a cache or between devices.

    All are read before any is written, so that a pair's target may be another pair's source.
    """
    if pairs:
        read, written = zip(*pairs, strict=True)
        for here, there in zip(source, target, strict=True):
            there[list(written)] = here[list(read)].to(there.device)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    tables: Sequence[Numbers],
    lengths: Numbers,
    query_starts: Numbers,
) -> Tensor:
    """Causal attention of packed queries to their sequences' cached tokens, of query's shape.

    Args:
        query: (tokens, heads, head_dim), where heads is a multiple of kv_heads.
        tables: one per sequence, at least as long as its tokens need.
        lengths: each sequence's tokens in the cache, the new ones included.
        query_starts: (sequences + 1,): sequence s has the queries from query_starts[s] on, before
            query_starts[s + 1], at least one.

    Source: Kwon et al. (2023), "PagedAttention", section 4.1.

    Example:

        >>> cache = torch.arange(8.0).view(4, 1, 2, 1)  # block 3 holds 6 and 7
        >>> query = torch.zeros(3, 1, 1)
        >>> output = paged_attention(query, cache, cache, [[3, 1], [2]], [3, 1], [0, 2, 3])
        >>> output.flatten().tolist()
        [6.5, 5.0, 4.0]
    """
    cache = key_cache, value_cache
    return PagedBatch(cache, tables, lengths, query_starts).attend(query, cache)


class PagedBatch:
    """The indices, masks and buffers of one step, for all layers that have the same window.

    Sequences with equally many queries and about equally many blocks are computed together, from
    copies of their blocks. The arguments are those of `paged_attention`; `cache` is any layer's.
    """

    def __init__(
        self,
        cache: Cache,
        tables: Sequence[Numbers],
        lengths: Numbers,
        query_starts: Numbers,
        *,
        window: int | None = None,
    ):
        check_paged_batch(cache, tables, lengths, query_starts, window)
        self.tokens = query_starts[-1]
        self.sequences = len(lengths)
        self.shape = cache[0].shape
        self.window = window
        self.groups = self._grouped(cache, tables, lengths, query_starts)

    def _grouped(
        self, cache: Cache, tables: Sequence[Numbers], lengths: Numbers, query_starts: Numbers
    ) -> list:
        size = self.shape[2]
        window = self.window
        sequences = []
        bounds = pairwise(query_starts)
        for table, length, (start, stop) in zip(tables, lengths, bounds, strict=True):
            # Blocks before the first query's window are not read.
            skip = max(0, length - (stop - start) - window + 1) // size if window else 0
            blocks = list(table[skip : -(-length // size)])
            sequences.append(_VisibleBlocks(stop - start, blocks, length - skip * size, start))
        sequences.sort(key=lambda sequence: (sequence.queries, len(sequence.blocks)))
        groups: list[list[_VisibleBlocks]] = []
        for sequence in sequences:
            if not groups or not _of_similar_size(groups[-1][0], sequence):
                groups.append([])
            groups[-1].append(sequence)
        return [_padded(group, cache, window) for group in groups]

    @torch.no_grad()
    def attend(self, query: Tensor, cache: Cache) -> Tensor:
        """Attention in one layer: query and the result are (tokens, heads, head_dim)."""
        check_paged_query(query, self.tokens, self.shape)
        if self.sequences == 1:  # its queries are all, in their order
            return self._attended(self.groups[0], query, cache)
        output = torch.empty_like(query)
        for group in self.groups:
            output[group.queries] = self._attended(group, query[group.queries], cache)
        return output

    def _attended(self, group: "_PaddedGroup", query: Tensor, cache: Cache) -> Tensor:
        head_dim = self.shape[3]
        for tensor, gathered in zip(cache, group.gathered, strict=True):
            flat = tensor.view(-1, gathered.shape[1])
            torch.index_select(flat, 0, group.blocks, out=gathered)
            if len(group.hidden):
                # Masked scores are not enough: 0 times an old inf or NaN would be NaN.
                gathered.view(-1, head_dim).index_fill_(0, group.hidden, 0)
        keys, values = group.gathered
        keys = self._read(group, keys)
        values = self._read(group, values)
        if len(query) == group.sequences:
            # A single query's heads can be the rows of their shared head, which is faster.
            rows = query.reshape(group.sequences, self.shape[1], -1, head_dim)
            output = F.scaled_dot_product_attention(rows, keys, values, attn_mask=group.seen)
            return output.reshape(query.shape)
        rows = query.unflatten(0, (group.sequences, -1)).transpose(1, 2)
        output = F.scaled_dot_product_attention(
            rows, keys, values, attn_mask=group.seen, enable_gqa=True
        )
        return output.transpose(1, 2).flatten(0, 1)

    def _read(self, group: "_PaddedGroup", gathered: Tensor) -> Tensor:
        """The keys or values that are read, (sequences, kv_heads, keys, head_dim)."""
        shape = (group.sequences, self.shape[1], -1, self.shape[3])
        return gathered.view(shape)[:, :, group.visible]


class _VisibleBlocks(NamedTuple):
    """The blocks of a sequence that its queries see."""

    queries: int
    blocks: list[int]
    length: int  # tokens from the first of these blocks on
    first: int  # index of its first query among the packed tokens


@dataclass(frozen=True)
class _PaddedGroup:
    """Sequences that are computed together, padded to equally many blocks."""

    sequences: int
    queries: Tensor | slice  # of the packed tokens, (sequences * queries)
    blocks: Tensor  # (sequences * kv_heads * blocks,), indices into (blocks * kv_heads) of a cache
    hidden: Tensor  # indices into (sequences * kv_heads * keys), of keys beyond a sequence's length
    visible: slice  # the keys that are read
    seen: Tensor | None  # (sequences, 1, queries, keys that are read); None: all
    gathered: Cache  # (sequences * kv_heads * blocks, block_size * head_dim), used in each layer


def _of_similar_size(shortest: _VisibleBlocks, sequence: _VisibleBlocks) -> bool:
    """Whether padding a group by a quarter is enough for it to take a sequence."""
    enough = len(shortest.blocks) * 5 // 4 + 1
    return sequence.queries == shortest.queries and len(sequence.blocks) <= enough


def _padded(group: list[_VisibleBlocks], cache: Cache, window: int | None) -> _PaddedGroup:
    _, kv_heads, size, head_dim = cache[0].shape
    device = cache[0].device
    queries = group[0].queries
    most = max(len(sequence.blocks) for sequence in group)
    padded = [sequence.blocks + [0] * (most - len(sequence.blocks)) for sequence in group]
    blocks = torch.tensor(padded, device=device)[:, None]  # (sequences, 1, blocks)
    blocks = blocks * kv_heads + torch.arange(kv_heads, device=device)[:, None]
    lengths = torch.tensor([sequence.length for sequence in group], device=device)[:, None]
    firsts = torch.tensor([sequence.first for sequence in group], device=device)[:, None]
    steps = torch.arange(queries, device=device)
    keys = torch.arange(most * size, device=device)
    positions = (lengths - queries + steps)[..., None]  # (sequences, queries, 1)
    seen = keys <= positions  # (sequences, queries, keys)
    if window is not None:
        seen &= keys > positions - window
    common = {
        "sequences": len(group),
        "blocks": blocks.flatten(),
        "gathered": tuple(t.new_empty(blocks.numel(), size * head_dim) for t in cache),
    }
    if len(group) == 1:  # no padding: only what is visible is read
        length = group[0].length
        first = max(0, length - queries - window + 1) if window else 0
        return _PaddedGroup(
            **common,
            queries=slice(group[0].first, group[0].first + queries),
            hidden=keys[:0],
            visible=slice(first, length),
            seen=None if queries == 1 else seen[:, None, :, first:length],
        )
    beyond = (keys >= lengths)[:, None].expand(-1, kv_heads, -1)  # (sequences, kv_heads, keys)
    return _PaddedGroup(
        **common,
        queries=(firsts + steps).flatten(),
        hidden=beyond.flatten().nonzero()[:, 0],
        visible=slice(None),
        seen=seen[:, None],
    )
