"""What the tiles of one attention call share: how to cut the matrix, compute and mask a tile.

Both passes of `flash` use it. Heads that share a key head are stacked: with group = heads //
kv_heads, a tile of `rows` queries is a tensor (batch, kv_heads, group · rows, …).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from course_pkg.acceleration.attention.masks import (
    ScoreMod,
    additive,
    band,
    indices,
    modified_scores,
    tile_state,
)
from course_pkg.acceleration.attention.philox import keep_mask


@dataclass(frozen=True)
class TileStep:
    """One step of the tiled algorithm, as `watch` receives it.

    `loaded` and `stored` are the numbers that a kernel with the same tiles would read from slow
    memory and write to it, over all heads and sequences; query heads read a shared key block once.
    """

    kind: Literal["load", "tile", "skip", "store"]  # load: a block for the whole inner loop
    phase: Literal["forward", "backward"]
    queries: range  # the indices that the step covers
    keys: range
    loaded: int = 0
    stored: int = 0
    maximum: Tensor | None = None  # running, (batch, heads, queries, 1), as the next two
    rescale: Tensor | None = None  # the factor on earlier results
    total: Tensor | None = None  # the running denominator
    output: Tensor | None = None  # before its division by total; in a "store" the final one


Watch = Callable[[TileStep], None]


@dataclass(frozen=True)
class Tiling:
    """The sizes and options of one call; see `flash.flash_attention` for what they mean."""

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
    key_mask: Tensor | None = None
    score_mod: ScoreMod | None = None
    dropout: float = 0.0
    seed: int = 0
    dtype: torch.dtype = torch.float32
    trainable: bool = False

    def query_blocks(self) -> list[range]:
        """The blocks of query indices; the last may be shorter."""
        return _blocks(self.queries, self.block_queries)

    def key_blocks(self) -> list[range]:
        """The blocks of key indices; the last may be shorter."""
        return _blocks(self.keys, self.block_keys)

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

    def stack(self, tensor: Tensor, rows: range) -> Tensor:
        """Rows of a tensor (batch, heads, queries, n): (batch, kv_heads, group · rows, n)."""
        tile = tensor[:, :, rows.start : rows.stop].to(self.dtype)
        stacked = self.heads // self.kv_heads * len(rows)
        return tile.reshape(self.batch, self.kv_heads, stacked, tile.shape[3])

    def unstack(self, tile: Tensor) -> Tensor:
        """The reverse: (batch, kv_heads, group · rows, n) to (batch, heads, rows, n)."""
        rows = tile.shape[2] * self.kv_heads // self.heads
        return tile.view(self.batch, self.heads, rows, tile.shape[3])

    def columns(self, tensor: Tensor, columns: range) -> Tensor:
        """One block of keys or values: (batch, kv_heads, columns, n)."""
        return tensor[:, :, columns.start : columns.stop].to(self.dtype)

    def scores(self, query: Tensor, key: Tensor, rows: range, columns: range) -> Tensor:
        """The scores of a tile, −inf where masked: (batch, kv_heads, group · rows, columns).

        The query is stacked and scaled. The result may be changed in place.
        """
        scores = query @ key.mT
        if self.score_mod is not None:
            with torch.set_grad_enabled(self.trainable):
                changed = self._modified(scores, rows, columns)
            if changed.requires_grad:
                raise ValueError(
                    "score_mod uses a tensor that requires a gradient, which flash_attention "
                    "does not compute: detach the tensor, or use plain.attention to train it"
                )
            scores = changed.to(self.dtype, copy=True).view(scores.shape)
        return self._masked(scores, rows, columns)

    def scores_and_pullback(
        self, query: Tensor, key: Tensor, rows: range, columns: range
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The scores again, and the function that takes their gradient back through score_mod."""
        if self.score_mod is None:
            return self._masked(query @ key.mT, rows, columns), lambda gradient: gradient
        with torch.enable_grad():
            scores = (query @ key.mT).detach().requires_grad_()
            # A copy, because score_mod may change its argument in place.
            changed = self._modified(scores.clone(), rows, columns).to(self.dtype)

        def pullback(gradient: Tensor) -> Tensor:
            if not changed.requires_grad:  # score_mod ignores the scores
                return torch.zeros_like(gradient)
            return torch.autograd.grad(changed, scores, gradient.view(changed.shape))[0]

        masked = self._masked(changed.detach().clone().view(scores.shape), rows, columns)
        return masked, pullback

    def keep(self, rows: range, columns: range, device: torch.device) -> Tensor:
        """What dropout keeps, divided by 1 − dropout: (batch, kv_heads, group · rows, columns)."""
        head = torch.arange(self.batch * self.heads, device=device)[:, None, None]
        query = indices(rows, device)[:, None]
        keep = keep_mask(self.seed, head, query, indices(columns, device), self.dropout)
        stacked = self.heads // self.kv_heads * len(rows)
        keep = keep.to(self.dtype) / (1 - self.dropout)
        return keep.view(self.batch, self.kv_heads, stacked, len(columns))

    def _modified(self, scores: Tensor, rows: range, columns: range) -> Tensor:
        offset = self.keys - self.queries
        return modified_scores(self.score_mod, self.unstack(scores), rows, columns, offset)

    def _masked(self, scores: Tensor, rows: range, columns: range) -> Tensor:
        if self.state(rows, columns) == "full":
            return scores
        device = scores.device
        positions = indices(rows, device) + self.keys - self.queries
        seen = band(positions, indices(columns, device), causal=self.causal, window=self.window)
        if self.key_mask is not None:
            seen = seen & self.key_mask[:, None, None, columns.start : columns.stop]
        self.unstack(scores).add_(additive(seen, self.dtype))
        return scores


def exp_(exponents: Tensor) -> Tensor:
    """e to the power of every element, in place, as 2 to the power of x · log₂ e.

    On a CPU, torch's exp2 is several times as fast as its exp, above all for −inf.
    """
    return exponents.mul_(math.log2(math.e)).exp2_()


def _blocks(count: int, size: int) -> list[range]:
    return [range(start, min(start + size, count)) for start in range(0, count, size)]
