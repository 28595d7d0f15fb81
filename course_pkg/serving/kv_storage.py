"""Where one layer's keys and values are kept: in a growing tensor, a preallocated one, or a ring.

Each storage has `append(key, value)`, which takes those of new tokens, (batch, kv_heads, new,
head_dim), and returns what the new tokens may attend to, in the order of the tokens. Only a ring
may permute them, for a single new token, which sees them all. `Int8` makes any storage one of 8
bits. Not here: models, masks and padding (`kv_cache`).
Chapter: serving/kv-cache.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Kept(NamedTuple):
    """Keys and values, (batch, kv_heads, kept, head_dim), and their tokens' indices, (kept,)."""

    key: Tensor
    value: Tensor
    index: Tensor


class Storage(ABC):
    """What every storage offers. length: tokens appended so far, less those truncated."""

    def __init__(self) -> None:
        self.length = 0
        self.held: tuple[Tensor, Tensor] | None = None  # keys and values, from the first token on

    @abstractmethod
    def append(self, key: Tensor, value: Tensor) -> Kept:
        """Keep new tokens; return what they may attend to.

        Raises ValueError if the shape does not fit the tokens before.
        """

    def can_truncate(self, tokens: int) -> bool:
        """Whether `truncate(tokens)` leaves all that later tokens may attend to."""
        return True

    def truncate(self, tokens: int) -> None:
        """Forget all but the first `tokens` tokens."""
        self.length = min(self.length, tokens)

    @property
    def bytes(self) -> int:
        """The memory of the tensors, with what is allocated but not used."""
        return sum(tensor.nbytes for tensor in self.held or ())


class Contiguous(Storage):
    """One tensor that grows: simple, but every append copies all that came before."""

    def append(self, key: Tensor, value: Tensor) -> Kept:
        if self.held is not None:
            _check_shape(self.held[0], key)
            key = torch.cat((self.held[0], key), dim=2)  # (batch, kv_heads, kept, head_dim)
            value = torch.cat((self.held[1], value), dim=2)  # (batch, kv_heads, kept, head_dim)
        self.held = (key, value)
        self.length = key.shape[2]
        return Kept(key, value, torch.arange(self.length, device=key.device))

    def truncate(self, tokens: int) -> None:
        """Copy the first tokens, so that the memory of the others is freed."""
        if self.held is not None and tokens < self.length:
            key, value = (tensor[:, :, :tokens].clone() for tensor in self.held)
            self.held = (key, value) if tokens else None
            self.length = tokens


class Static(Storage):
    """Tensors of a fixed capacity, allocated at the first append: no copies, but all the memory."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

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


class Ring(Storage):
    """The last `window` tokens: token t is in slot t mod window, where it overwrites t − window."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window
        self.written = 0  # tokens ever written; more than length after a truncation

    def append(self, key: Tensor, value: Tensor) -> Kept:
        """Write over the oldest tokens.

        Several new tokens, even more than the window, are all returned after those of the last
        window, because the first of them still sees the tokens before it.
        """
        if self.held is None:
            self.held = _empty(key, self.window), _empty(value, self.window)
        _check_shape(self.held[0], key)
        start = self.length
        end = start + key.shape[2]
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
        self.length = end
        self.written = max(self.written, end)
        if end - start != 1:
            return Kept(key, value, index)
        slots = torch.arange(min(end, self.window), device=key.device)
        kept = (tensor[:, :, : len(slots)] for tensor in self.held)  # (batch, kv_heads, kept, d)
        return Kept(*kept, end - 1 - (end - 1 - slots) % self.window)

    def can_truncate(self, tokens: int) -> bool:
        """Whether no token in the window of the next one was overwritten: one step back, or all."""
        return tokens == 0 or self.written <= self.window or tokens >= self.written - 1

    def truncate(self, tokens: int) -> None:
        super().truncate(tokens)
        if tokens == 0:
            self.written = 0


class Int8(Storage):
    """Any storage in 8 bits: one for the codes, and one for the scales, in fp32.

    New tokens are attended to as they will be read later, so that it makes no difference whether
    they come one by one or together.
    """

    def __init__(self, new_storage: Callable[[], Storage]) -> None:
        super().__init__()
        self.codes = new_storage()
        self.scales = new_storage()

    def append(self, key: Tensor, value: Tensor) -> Kept:
        key_codes, key_scales = quantize(key)
        value_codes, value_scales = quantize(value)
        codes = self.codes.append(key_codes, value_codes)
        scales = self.scales.append(key_scales, value_scales)
        self.length = self.codes.length
        return Kept(
            dequantize(codes.key, scales.key).to(key.dtype),
            dequantize(codes.value, scales.value).to(value.dtype),
            codes.index,
        )

    def can_truncate(self, tokens: int) -> bool:
        return self.codes.can_truncate(tokens)

    def truncate(self, tokens: int) -> None:
        self.codes.truncate(tokens)
        self.scales.truncate(tokens)
        self.length = self.codes.length

    @property
    def bytes(self) -> int:
        """The memory of the codes and the scales: head_dim + 4 bytes per token and head."""
        return self.codes.bytes + self.scales.bytes


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes from −127 to 127, int8, x's shape, and one scale per token and head, fp32, (…, 1).

    The scale is the largest absolute value / 127, so the error is at most half a scale. All zeros
    have scale 0.

    >>> codes, scales = quantize(torch.tensor([[127.0, -63.6, 0.4]]))
    >>> codes, dequantize(codes, scales)
    (tensor([[127, -64,   0]], dtype=torch.int8), tensor([[127., -64.,   0.]]))
    """
    scales = x.float().abs().amax(-1, keepdim=True) / 127  # (…, 1)
    codes = (x.float() / scales.clamp(min=torch.finfo(torch.float32).tiny)).round()
    return codes.to(torch.int8), scales


def dequantize(codes: Tensor, scales: Tensor) -> Tensor:
    """The values that the codes stand for, fp32."""
    return codes * scales


def _empty(like: Tensor, tokens: int) -> Tensor:
    return like.new_zeros(*like.shape[:2], tokens, like.shape[3])


def _check_shape(held: Tensor, new: Tensor) -> None:
    expected, given = ((batch, heads, dim) for batch, heads, _, dim in (held.shape, new.shape))
    if expected != given:
        raise ValueError(
            f"the cache was made for (batch, kv_heads, head_dim) = {expected}, got {given}: make a "
            "new cache for another batch or model"
        )
