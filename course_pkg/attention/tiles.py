"""What the tiles of one attention call share: how to cut the matrix, compute and mask a tile.

Both passes of `flash` use it, so that they see the same scores, masks and dropout. Heads that
share a key head are stacked: with group = heads // kv_heads, a tile of `rows` queries is a tensor
(batch, kv_heads, group · rows, …). Chapter: acceleration/flash-attention.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from .arguments import ScoreHook, apply_hook
from .masks import additive, band, tile_state
from .philox import keep_mask


@dataclass(frozen=True)
class Step:
    """One step of the tiled algorithm, as `watch` receives it.

    kind: "load" (a block that stays for the whole inner loop), "tile" (one tile is computed),
    "skip" (a tile that nobody sees) or "store" (results are written). phase: "forward" or
    "backward". queries, keys: the indices that the step covers. loaded, stored: how many numbers a
    kernel with the same tiles would read from slow memory and write to it in this step, over all
    heads and sequences; a key block is read once for all the query heads that share it.
    The rest belongs to a "tile" of the forward phase and is None elsewhere. Of shape (batch, heads,
    queries, 1): maximum, the running maximum; rescale, the factor on earlier results; total, the
    running denominator. Of shape (batch, heads, queries, value_dim): output, the partial output
    before its division by `total`. A "store" has only the final output.
    Chapter: acceleration/flash-attention.

    >>> Step("skip", "forward", range(0, 4), range(4, 8)).loaded
    0
    """

    kind: Literal["load", "tile", "skip", "store"]
    phase: Literal["forward", "backward"]
    queries: range
    keys: range
    loaded: int = 0
    stored: int = 0
    maximum: torch.Tensor | None = None
    rescale: torch.Tensor | None = None
    total: torch.Tensor | None = None
    output: torch.Tensor | None = None


Watch = Callable[[Step], None]


@dataclass(frozen=True)
class Tiling:
    """The sizes and options of one call; see `flash.flash_attention` for what they mean.

    dtype: of the computation, float32 or float64. trainable: whether gradients are recorded, so
    that a score hook with trainable tensors must be refused. Chapter: acceleration/flash-attention.

    >>> tiling = Tiling(1, 1, 1, 5, 5, 1.0, block_queries=3, block_keys=2, causal=True)
    >>> [tiling.state(range(0, 3), columns) for columns in tiling.key_blocks()]
    ['partial', 'partial', 'skip']
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    scale: float
    block_queries: int
    block_keys: int
    causal: bool = False
    window: int | None = None
    key_mask: torch.Tensor | None = None
    score_hook: ScoreHook | None = None
    dropout: float = 0.0
    seed: int = 0
    dtype: torch.dtype = torch.float32
    trainable: bool = False

    def query_blocks(self) -> Iterator[range]:
        """The blocks of query indices; the last may be shorter."""
        yield from _blocks(self.queries, self.block_queries)

    def key_blocks(self) -> Iterator[range]:
        """The blocks of key indices; the last may be shorter."""
        yield from _blocks(self.keys, self.block_keys)

    def state(self, rows: range, columns: range) -> Literal["skip", "full", "partial"]:
        """Whether none, all or some of a tile is visible in any sequence of the batch."""
        offset = self.keys - self.queries
        state = tile_state(
            rows.start, rows.stop, columns.start, columns.stop, offset, self.causal, self.window
        )
        if state == "skip" or self.key_mask is None:
            return state
        real = self.key_mask[:, columns.start : columns.stop]
        if not real.any():
            return "skip"
        return state if real.all() else "partial"

    def stack(self, tensor: torch.Tensor, rows: range) -> torch.Tensor:
        """Rows of a tensor (batch, heads, queries, n): (batch, kv_heads, group · rows, n)."""
        tile = tensor[:, :, rows.start : rows.stop].to(self.dtype)
        stacked = self.heads // self.kv_heads * len(rows)
        return tile.reshape(self.batch, self.kv_heads, stacked, tile.shape[3])

    def unstack(self, tile: torch.Tensor) -> torch.Tensor:
        """The reverse: (batch, kv_heads, group · rows, n) to (batch, heads, rows, n)."""
        rows = tile.shape[2] * self.kv_heads // self.heads
        return tile.view(self.batch, self.heads, rows, tile.shape[3])

    def columns(self, tensor: torch.Tensor, columns: range) -> torch.Tensor:
        """One block of keys or values: (batch, kv_heads, columns, n)."""
        return tensor[:, :, columns.start : columns.stop].to(self.dtype)

    def scores(
        self, query: torch.Tensor, key: torch.Tensor, rows: range, columns: range
    ) -> torch.Tensor:
        """The scores of a tile, −inf where masked: (batch, kv_heads, group · rows, columns).

        query: stacked and scaled; key: the block's. The result may be changed in place.
        """
        scores = query @ key.mT
        if self.score_hook is not None:
            with torch.set_grad_enabled(self.trainable):
                changed = self._hooked(scores, rows, columns)
            if changed.requires_grad:
                raise ValueError(
                    "score_hook uses a tensor that requires a gradient, which flash_attention "
                    "does not compute: detach the tensor, or use plain.attention to train it"
                )
            scores = changed.to(self.dtype, copy=True).view(scores.shape)
        return self._masked(scores, rows, columns)

    def scores_and_pullback(
        self, query: torch.Tensor, key: torch.Tensor, rows: range, columns: range
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
        """The scores again, and the function that takes their gradient back through the hook."""
        if self.score_hook is None:
            return self._masked(query @ key.mT, rows, columns), lambda gradient: gradient
        with torch.enable_grad():
            scores = (query @ key.mT).detach().requires_grad_()
            # A copy, because the hook may change its argument in place.
            changed = self._hooked(scores.clone(), rows, columns).to(self.dtype)

        def pullback(gradient: torch.Tensor) -> torch.Tensor:
            if not changed.requires_grad:  # the hook ignores the scores
                return torch.zeros_like(gradient)
            return torch.autograd.grad(changed, scores, gradient.view(changed.shape))[0]

        masked = self._masked(changed.detach().clone().view(scores.shape), rows, columns)
        return masked, pullback

    def keep(self, rows: range, columns: range, device: torch.device) -> torch.Tensor:
        """What dropout keeps, divided by 1 − dropout: (batch, kv_heads, group · rows, columns)."""
        head = torch.arange(self.batch * self.heads, device=device)[:, None, None]
        query, key = _indices(rows, device)[:, None], _indices(columns, device)
        keep = keep_mask(self.seed, head, query, key, self.dropout).to(self.dtype)
        stacked = self.heads // self.kv_heads * len(rows)
        return (keep / (1 - self.dropout)).view(self.batch, self.kv_heads, stacked, len(columns))

    def _hooked(self, scores: torch.Tensor, rows: range, columns: range) -> torch.Tensor:
        head = torch.arange(self.heads, device=scores.device)[:, None, None]
        position = _indices(rows, scores.device)[:, None] + self.keys - self.queries
        key = _indices(columns, scores.device)
        return apply_hook(self.score_hook, self.unstack(scores), head, position, key)

    def _masked(self, scores: torch.Tensor, rows: range, columns: range) -> torch.Tensor:
        if self.state(rows, columns) == "full":
            return scores
        device = scores.device
        positions = _indices(rows, device) + self.keys - self.queries
        seen = band(positions, _indices(columns, device), causal=self.causal, window=self.window)
        if self.key_mask is not None:
            seen = seen & self.key_mask[:, None, None, columns.start : columns.stop]
        self.unstack(scores).add_(additive(seen, self.dtype))
        return scores


def exp_(exponents: torch.Tensor) -> torch.Tensor:
    """e to the power of every element, in place and through 2 to the power of x · log₂ e.

    On a CPU, torch's exp2 is several times as fast as its exp, above all for −inf; GPU kernels use
    base 2 because the hardware computes it. Chapter: acceleration/flash-attention.

    >>> exp_(torch.tensor([0.0, -torch.inf]))
    tensor([1., 0.])
    """
    return exponents.mul_(math.log2(math.e)).exp2_()


def _blocks(count: int, size: int) -> Iterator[range]:
    for start in range(0, count, size):
        yield range(start, min(start + size, count))


def _indices(block: range, device: torch.device) -> torch.Tensor:
    return torch.arange(block.start, block.stop, device=device)
