"""Where one layer's keys and values are kept: in a growing tensor, a preallocated one, or a ring.

Each storage has `append(key, value)`, which takes those of new tokens, (batch, kv_heads, new,
head_dim), and returns what the new tokens may attend to: keys and values, (batch, kv_heads, kept,
head_dim), and the index of each one's token, (kept,), where the first token has index 0. They are
in the order of the tokens, except that a ring may permute them if the new token is only one: then
it sees them all, and attention does not depend on the order of keys.

A storage knows nothing of models, masks or padding, which `course_pkg.serving.kv_cache` adds.
`course_pkg.serving.kv_int8` makes any storage one of 8 bits.
Chapter: serving/kv-cache.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Kept(NamedTuple):
    """Keys and values, (batch, kv_heads, kept, head_dim), and their tokens' indices, (kept,)."""

    key: Tensor
    value: Tensor
    index: Tensor


class Storage(Protocol):
    """What every storage offers. length: tokens appended so far, less those truncated."""

    length: int

    def append(self, key: Tensor, value: Tensor) -> Kept:
        """Keep new tokens; return what they may attend to."""

    def can_truncate(self, tokens: int) -> bool:
        """Whether `truncate(tokens)` leaves all that later tokens may attend to."""

    def truncate(self, tokens: int) -> None:
        """Forget all but the first `tokens` tokens."""

    @property
    def bytes(self) -> int:
        """The memory of the tensors, with what is allocated but not used."""


class Contiguous:
    """One tensor that grows: simple, but every append copies all that came before."""

    def __init__(self) -> None:
        self.length = 0
        self.held: tuple[Tensor, Tensor] | None = None

    def append(self, key: Tensor, value: Tensor) -> Kept:
        """Concatenate. Raises ValueError if the shape does not fit the tokens before."""
        if self.held is not None:
            _check_shape(self.held[0], key)
            key = torch.cat((self.held[0], key), dim=2)  # (batch, kv_heads, kept, head_dim)
            value = torch.cat((self.held[1], value), dim=2)  # (batch, kv_heads, kept, head_dim)
        self.held, self.length = (key, value), key.shape[2]
        return Kept(key, value, torch.arange(self.length, device=key.device))

    def can_truncate(self, tokens: int) -> bool:
        """Always."""
        return True

    def truncate(self, tokens: int) -> None:
        """Copy the first tokens, so that the memory of the others is freed."""
        if self.held is not None and tokens < self.length:
            key, value = (tensor[:, :, :tokens].clone() for tensor in self.held)
            self.held = (key, value) if tokens else None
            self.length = tokens

    @property
    def bytes(self) -> int:
        """The memory of the keys and values."""
        return _bytes(self.held)


class Static:
    """Tensors of a fixed capacity, allocated at the first append: no copies, but all the memory."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self.held: tuple[Tensor, Tensor] | None = None

    def append(self, key: Tensor, value: Tensor) -> Kept:
        """Write into the free part. Raises ValueError if it is too small, and then changes nothing.

        The result is a view, valid until the next append.
        """
        end = self.length + key.shape[2]
        if end > self.capacity:
            raise ValueError(
                f"the cache is full: {self.length} of {self.capacity} tokens are used, and "
                f"{key.shape[2]} more do not fit; give a capacity of {end} or more, or truncate it"
            )
        if self.held is None:
            self.held = _empty(key, self.capacity), _empty(value, self.capacity)
        _check_shape(self.held[0], key)
        for tensor, new in zip(self.held, (key, value), strict=True):
            tensor[:, :, self.length : end] = new
        self.length = end
        kept = (tensor[:, :, :end] for tensor in self.held)  # (batch, kv_heads, kept, head_dim)
        return Kept(*kept, torch.arange(end, device=key.device))

    def can_truncate(self, tokens: int) -> bool:
        """Always."""
        return True

    def truncate(self, tokens: int) -> None:
        """Mark the other tokens' part as free."""
        self.length = min(self.length, tokens)

    @property
    def bytes(self) -> int:
        """The memory of the whole capacity."""
        return _bytes(self.held)


class Ring:
    """The last `window` tokens: token t is in slot t mod window, where it overwrites t − window."""

    def __init__(self, window: int) -> None:
        self.window, self.length = window, 0
        self.written = 0  # tokens ever written; more than length after a truncation
        self.held: tuple[Tensor, Tensor] | None = None

    def append(self, key: Tensor, value: Tensor) -> Kept:
        """Write one token over the oldest, or several after those of the window before them.

        Several new tokens may be more than the window. All of them are returned, after those of
        the last window, because the first of them still sees the tokens before it.
        """
        if self.held is None:
            self.held = _empty(key, self.window), _empty(value, self.window)
        _check_shape(self.held[0], key)
        start, end = self.length, self.length + key.shape[2]
        first = max(0, start - self.window)
        index = torch.arange(first, end, device=key.device)
        if end - start != 1:  # in order: what is kept, then what is new
            old = index[: start - first] % self.window
            key, value = (
                torch.cat((tensor[:, :, old], new), dim=2)  # (batch, kv_heads, old + new, head_dim)
                for tensor, new in zip(self.held, (key, value), strict=True)
            )
        last = torch.arange(max(start, end - self.window), end, device=key.device)
        for tensor, new in zip(self.held, (key, value), strict=True):
            tensor[:, :, last % self.window] = new[:, :, new.shape[2] - len(last) :]
        self.length, self.written = end, max(self.written, end)
        if end - start != 1:
            return Kept(key, value, index)
        slots = torch.arange(min(end, self.window), device=key.device)
        kept = (tensor[:, :, : len(slots)] for tensor in self.held)  # (batch, kv_heads, kept, d)
        return Kept(*kept, end - 1 - (end - 1 - slots) % self.window)

    def can_truncate(self, tokens: int) -> bool:
        """Whether no token in the window of the next one was overwritten: one step back, or all."""
        return tokens == 0 or self.written <= self.window or tokens >= self.written - 1

    def truncate(self, tokens: int) -> None:
        """Step back; slots keep their tokens until they are overwritten."""
        self.length = min(self.length, tokens)
        if tokens == 0:
            self.written = 0

    @property
    def bytes(self) -> int:
        """The memory of `window` tokens, used or not."""
        return _bytes(self.held)


def _empty(like: Tensor, tokens: int) -> Tensor:
    return like.new_zeros(*like.shape[:2], tokens, like.shape[3])


def _bytes(tensors: tuple[Tensor, Tensor] | None) -> int:
    return sum(tensor.nbytes for tensor in tensors or ())


def _check_shape(held: Tensor, new: Tensor) -> None:
    (batch, heads, _, dim), (new_batch, new_heads, _, new_dim) = held.shape, new.shape
    if (batch, heads, dim) != (new_batch, new_heads, new_dim):
        raise ValueError(
            f"the cache was made for (batch, kv_heads, head_dim) = {batch, heads, dim}, got "
            f"{new_batch, new_heads, new_dim}: make a new cache for another batch or model"
        )
