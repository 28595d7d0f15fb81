"""Paged attention on a GPU: kernels that read keys and values where their blocks are.

`paged_batch` chooses between `paged` and the kernels. The keys of a sequence that generates are
split into parts of PART_KEYS, a fixed size, so that its result does not depend on the others.
Without a GPU the kernels run in Triton's interpreter. Not here: gradients.
Chapter: acceleration/paged-attention.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from course_pkg.acceleration.attention.kernel_arguments import (
    LARGEST_HEAD_DIM,
    TYPES,
    check_kernel_input,
    head_dims,
    rows,
    token_rows,
)
from course_pkg.acceleration.attention.paged import Cache, Numbers, PagedBatch
from course_pkg.acceleration.attention.paged_triton_kernels import merge_kernel, paged_kernel
from course_pkg.acceleration.attention.validation import check_paged_query
from course_pkg.common.triton_runtime import (
    INSTALLED,
    INTERPRETED,
    computed,
    triton,
    with_adjacent_numbers,
)

PART_KEYS = 512  # keys that a program reads of a sequence that generates


def paged_attention_triton(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    tables: Sequence[Numbers],
    lengths: Numbers,
    query_starts: Numbers,
    *,
    scale: float | None = None,
    window: int | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The same as `paged.paged_attention`, by the kernels: (tokens, heads, head_dim).

    The tensors are float16, bfloat16 or float32, with head_dim up to 128; otherwise the arguments
    are the same. Scores and sums are float32; probabilities are rounded to the type of the inputs
    before they multiply the values. For several layers, build a `TritonBatch` once.
    Raises ImportError without triton, ValueError or TypeError for what does not fit.
    Source: Kwon et al. (2023), "PagedAttention", section 4.3.
    """
    cache = key_cache, value_cache
    batch = TritonBatch(cache, tables, lengths, query_starts, window=window)
    return batch.attend(query, cache, scale=scale, return_lse=return_lse)


def paged_batch(
    cache: Cache,
    tables: Sequence[Numbers],
    lengths: Numbers,
    query_starts: Numbers,
    *,
    window: int | None = None,
) -> PagedBatch:
    """The batch for this cache: of kernels on a GPU, of `paged` on a CPU or if they don't take it.

    >>> cache = torch.zeros(4, 1, 2, 8), torch.zeros(4, 1, 2, 8)
    >>> type(paged_batch(cache, [[3, 1], [2]], [3, 1], [0, 2, 3])).__name__
    'PagedBatch'
    """
    kind = TritonBatch if runs_kernels(cache[0]) else PagedBatch
    return kind(cache, tables, lengths, query_starts, window=window)


def runs_kernels(cache: Tensor) -> bool:
    """Whether the kernels are compiled for the device, type and head_dim of a cache."""
    taken = cache.dtype in TYPES and cache.shape[-1] <= LARGEST_HEAD_DIM
    return INSTALLED and not INTERPRETED and cache.is_cuda and taken


class _Launch(NamedTuple):
    """The sequences of one launch: those that generate, or those with several queries."""

    spans: Tensor  # int32, (sequences, 4): first token, queries, length, first entry of its table
    queries: int  # the most of a sequence
    keys: int  # the most that a query sees


class TritonBatch(PagedBatch):
    """What the kernels need to know of one step, for all layers that have the same window."""

    def _grouped(
        self, cache: Cache, tables: Sequence[Numbers], lengths: Numbers, query_starts: Numbers
    ) -> list[_Launch]:
        device = cache[0].device
        size = self.shape[2]
        used = [table[: -(-n // size)] for table, n in zip(tables, lengths, strict=True)]
        blocks = [block for table in used for block in table]
        self.blocks = torch.tensor(blocks, dtype=torch.int32, device=device)
        entries = list(accumulate(map(len, used), initial=0))[:-1]
        bounds = pairwise(query_starts)
        spans = [
            (start, stop - start, length, entry)
            for (start, stop), length, entry in zip(bounds, lengths, entries, strict=True)
        ]
        generating = [span for span in spans if span[1] == 1]
        reading = [span for span in spans if span[1] > 1]
        launches = []
        for group in filter(None, (generating, reading)):
            keys = max(length for _, _, length, _ in group)
            if self.window is not None and group is generating:
                keys = min(keys, self.window)
            queries = max(queries for _, queries, _, _ in group)
            spans = torch.tensor(group, dtype=torch.int32, device=device)
            launches.append(_Launch(spans, queries, keys))
        return launches

    @torch.no_grad()
    def attend(
        self, query: Tensor, cache: Cache, *, scale: float | None = None, return_lse: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """As `PagedBatch.attend`; also raises TypeError, and ImportError without triton."""
        check_paged_query(query, self.tokens, self.shape)
        check_kernel_input(query, "query and cache", "course_pkg.acceleration.attention.paged")
        self._check_cache(query, cache)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        lse = query.new_empty(query.shape[:2], dtype=torch.float32) if return_lse else None
        scale = self.shape[3] ** -0.5 if scale is None else scale
        query = with_adjacent_numbers(computed(query))
        cache = tuple(map(computed, cache))
        with torch.cuda.device_of(query):  # kernels start on the current GPU, or on none
            for launch in self.groups:
                self._launch(launch, query, cache, output, lse, scale)
        return (output, lse) if return_lse else output

    def _launch(
        self,
        launch: _Launch,
        query: Tensor,
        cache: Cache,
        output: Tensor,
        lse: Tensor | None,
        scale: float,
    ) -> None:
        _, kv_heads, block_size, head_dim = self.shape
        heads = query.shape[1]
        sequences = len(launch.spans)
        sizes = head_dims(head_dim) | {"WINDOW": self.window}
        most = launch.queries * heads // kv_heads  # rows of a sequence
        tile = _tile(most, query)
        tiles = triton.cdiv(most, tile["ROWS"])
        keys = PART_KEYS if launch.queries == 1 else launch.keys
        parts = triton.cdiv(launch.keys, keys)
        results = token_rows(output), None if lse is None else token_rows(lse)
        targets = results
        if parts > 1:
            shape = (parts, heads, sequences)
            partial = query.new_empty((*shape, head_dim), dtype=torch.float32)
            targets = rows(partial), rows(query.new_empty(shape, dtype=torch.float32))
        paged_kernel[tiles * parts, kv_heads, sequences](
            token_rows(query),
            *map(rows, cache),
            *targets,
            launch.spans,
            self.blocks,
            parts,
            keys,
            scale,
            GROUP=heads // kv_heads,
            BLOCK_SIZE=block_size,
            SPLIT=parts > 1,
            **sizes,
            **tile,
        )
        if parts > 1:
            merge_kernel[sequences, heads](*targets, *results, launch.spans, keys, **sizes)

    def _check_cache(self, query: Tensor, cache: Cache) -> None:
        for tensor in cache:
            if tensor.dtype != query.dtype or tensor.device != query.device:
                raise TypeError(
                    f"query is {query.dtype} on {query.device}, a cache {tensor.dtype} on "
                    f"{tensor.device}: give all of one type on one device"
                )
            if tensor.shape != self.shape or tensor.stride(3) != 1:
                raise ValueError(
                    f"a cache {tuple(tensor.shape)} with strides {tensor.stride()} for a batch of "
                    f"{tuple(self.shape)}: give this shape, and the numbers of a slot adjacent"
                )


def _tile(most: int, query: Tensor) -> dict[str, int]:
    """Rows and keys of a tile, for sequences of at most `most` rows, and how it is computed."""
    if INTERPRETED:
        return {"ROWS": 16, "KEYS": 16}
    largest = 32 if query.dtype == torch.float32 else 64
    several = {"ROWS": min(largest, max(16, triton.next_power_of_2(most))), "KEYS": largest}
    return several | {"num_warps": 4, "num_stages": 2}
