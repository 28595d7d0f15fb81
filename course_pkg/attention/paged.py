"""Attention through block tables, for the packed tokens of several sequences.

A cache is a pair of tensors for one layer, keys and values, each (blocks, kv_heads, block_size,
head_dim). A sequence's block table lists its blocks in the order of its tokens: token t is in block
table[t // block_size] at t % block_size, and its slot is the number block · block_size + offset.

The queries of a step are packed, (tokens, heads, head_dim), those of one sequence together: one
query for a sequence that generates, many for a prompt or a chunk of one. They are the sequence's
last tokens, and `write` has put their keys and values in the cache already. Query i of n sees the
keys up to position length − n + i (causal).

Sequences with equally many queries and about equally many blocks are computed together. Their
blocks are copied into one buffer, which a GPU kernel avoids. Not here: gradients.
Chapter: acceleration/paged-attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import check_packed_query, check_paged_batch

Cache = tuple[Tensor, Tensor]  # keys and values of one layer


def write(cache: Cache, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Put keys and values of new tokens, (tokens, kv_heads, head_dim), into their slots, (tokens,).

    Raises ValueError if the shapes do not fit.

    >>> cache = torch.zeros(3, 1, 2, 1), torch.zeros(3, 1, 2, 1)
    >>> write(cache, torch.ones(1, 1, 1), torch.ones(1, 1, 1), torch.tensor([5]))
    >>> cache[0].flatten().tolist()  # slot 5 is in block 2
    [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    """
    block_size = cache[0].shape[2]
    expected = (len(slots), cache[0].shape[1], cache[0].shape[3])
    if keys.shape != expected or values.shape != expected:
        raise ValueError(
            f"keys {tuple(keys.shape)} and values {tuple(values.shape)} for {len(slots)} slots of "
            f"a cache {tuple(cache[0].shape)}: expected (tokens, kv_heads, head_dim), {expected}"
        )
    block, offset = slots // block_size, slots % block_size
    cache[0][block, :, offset] = keys
    cache[1][block, :, offset] = values


def copy_blocks(source: Cache, target: Cache, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy whole blocks, (source, target) numbers, within a cache or between devices.

    All are read before any is written, so that a pair's target may be another pair's source.

    >>> cache = torch.arange(3.0).view(3, 1, 1, 1), torch.zeros(3, 1, 1, 1)
    >>> copy_blocks(cache, cache, [(1, 2), (0, 1)])
    >>> cache[0].flatten().tolist()
    [0.0, 0.0, 1.0]
    """
    if pairs:
        read, written = zip(*pairs, strict=True)
        for here, there in zip(source, target, strict=True):
            there[list(written)] = here[list(read)].to(there.device)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
    query_starts: Sequence[int],
    *,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Causal attention of packed queries to their sequences' cached tokens, of query's shape.

    query: (tokens, heads, head_dim), where heads is a multiple of kv_heads. tables: one per
    sequence, at least as long as its tokens need. lengths: each sequence's tokens in the cache, the
    new ones included. query_starts: (sequences + 1), sequence s has the queries query_starts[s] …
    query_starts[s + 1] − 1, at least one. scale: head_dim ** −0.5 by default. window: a query sees
    itself and the window − 1 tokens before it.
    For several layers, build a `PagedBatch` once. Raises ValueError for what does not fit.
    Source: Kwon et al. (2023), "PagedAttention", section 4.1.

    >>> cache = torch.arange(8.0).view(4, 1, 2, 1)  # block 3 holds 6 and 7, block 1 holds 2 and 3
    >>> query = torch.zeros(3, 1, 1)
    >>> paged_attention(query, cache, cache, [[3, 1], [2]], [3, 1], [0, 2, 3]).flatten().tolist()
    [6.5, 5.0, 4.0]
    """
    cache = key_cache, value_cache
    batch = PagedBatch(cache, tables, lengths, query_starts, window=window)
    return batch.attend(query, cache, scale=scale)


@dataclass(frozen=True)
class _Group:
    """Sequences that are computed together."""

    queries: Tensor  # (sequences, queries), indices of packed tokens
    blocks: Tensor  # (sequences * kv_heads * blocks,), indices into (blocks * kv_heads) of a cache
    hidden: Tensor  # indices into (sequences * kv_heads * keys), of keys beyond a sequence's length
    seen: Tensor  # (sequences, 1, queries, keys)
    gathered: Cache  # (sequences * kv_heads * blocks, block_size * head_dim), used in each layer


class PagedBatch:
    """The indices, masks and buffers of one step, for all layers that have the same window.

    cache: any layer's; tables, lengths, query_starts, window: as in `paged_attention`.

    >>> cache = torch.zeros(4, 1, 2, 8), torch.ones(4, 1, 2, 8)
    >>> batch = PagedBatch(cache, [[3, 1], [2]], [3, 1], [0, 2, 3])
    >>> batch.attend(torch.zeros(3, 4, 8), cache).shape
    torch.Size([3, 4, 8])
    """

    def __init__(
        self,
        cache: Cache,
        tables: Sequence[Sequence[int]],
        lengths: Sequence[int],
        query_starts: Sequence[int],
        *,
        window: int | None = None,
    ):
        check_paged_batch(cache, tables, lengths, query_starts, window)
        self.tokens, self.shape, size = query_starts[-1], cache[0].shape, cache[0].shape[2]
        members = []
        bounds = pairwise(query_starts)
        for table, length, (start, stop) in zip(tables, lengths, bounds, strict=True):
            # Blocks before the first query's window are not read.
            skip = max(0, length - (stop - start) - window + 1) // size if window else 0
            blocks = list(table[skip : -(-length // size)])
            members.append(_Member(stop - start, blocks, length - skip * size, start))
        members.sort(key=lambda member: (member.queries, len(member.blocks)))
        groups: list[list[_Member]] = []
        for member in members:
            if not groups or not _fits(groups[-1][0], member):
                groups.append([])
            groups[-1].append(member)
        self.groups = [_group(group, cache, window) for group in groups]

    @torch.no_grad()
    def attend(self, query: Tensor, cache: Cache, *, scale: float | None = None) -> Tensor:
        """Attention in one layer: query and the result are (tokens, heads, head_dim).

        Raises ValueError if the query does not fit the cache or the batch.
        """
        check_packed_query(query, self.tokens, self.shape)
        kv_heads = self.shape[1]
        output = torch.empty_like(query)
        for group in self.groups:
            sequences, _, _, keys = group.seen.shape
            for tensor, gathered in zip(cache, group.gathered, strict=True):
                flat = tensor.view(-1, gathered.shape[1])
                torch.index_select(flat, 0, group.blocks, out=gathered)
                # Masked scores are not enough: 0 times an old inf or NaN would be NaN.
                gathered.view(-1, self.shape[3]).index_fill_(0, group.hidden, 0)
            key, value = (each.view(sequences, kv_heads, keys, -1) for each in group.gathered)
            attended = F.scaled_dot_product_attention(
                query[group.queries].transpose(1, 2),  # (sequences, heads, queries, head_dim)
                key,  # (sequences, kv_heads, keys, head_dim)
                value,
                attn_mask=group.seen,
                scale=scale,
                enable_gqa=True,
            )
            output[group.queries] = attended.transpose(1, 2)
        return output


class _Member(NamedTuple):
    """A sequence of a batch, without the blocks that its window hides."""

    queries: int
    blocks: list[int]
    length: int
    first: int  # index of its first query among the packed tokens


def _fits(first: _Member, member: _Member) -> bool:
    """Whether a member may join a group whose shortest is `first`, to be padded by a quarter."""
    enough = len(first.blocks) * 5 // 4 + 1
    return member.queries == first.queries and len(member.blocks) <= enough


def _group(members: list[_Member], cache: Cache, window: int | None) -> _Group:
    device, (_, kv_heads, size, head_dim) = cache[0].device, cache[0].shape
    queries, most = members[0].queries, max(len(member.blocks) for member in members)
    padded = [member.blocks + [0] * (most - len(member.blocks)) for member in members]
    blocks = torch.tensor(padded, device=device)[:, None]  # (sequences, 1, blocks)
    blocks = blocks * kv_heads + torch.arange(kv_heads, device=device)[:, None]
    lengths = torch.tensor([member.length for member in members], device=device)[:, None]
    firsts = torch.tensor([member.first for member in members], device=device)[:, None]
    steps = torch.arange(queries, device=device)
    keys = torch.arange(most * size, device=device)
    positions = (lengths - queries + steps)[..., None]  # (sequences, queries, 1)
    seen = keys <= positions  # (sequences, queries, keys)
    if window is not None:
        seen &= keys > positions - window
    beyond = (keys >= lengths)[:, None].expand(-1, kv_heads, -1)  # (sequences, kv_heads, keys)
    return _Group(
        queries=firsts + steps,
        blocks=blocks.flatten(),
        hidden=beyond.flatten().nonzero()[:, 0],
        seen=seen[:, None],
        gathered=tuple(t.new_empty(blocks.numel(), size * head_dim) for t in cache),
    )
