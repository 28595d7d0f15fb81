"""KV caches: the keys and values of earlier tokens, kept so that a step computes only new ones.

A cache is made for a decoder's config, and its `attend` is what the decoder calls in each layer::

    cache = ContiguousCache(model.config)
    logits = model(ids, cache.positions(ids.shape[1]), cache.attend)  # under torch.no_grad()

Keys are kept as they were rotated. RoPE of type "dynamic" or "longrope" changes all rotations when
the text outgrows the original length; from then on, a cache and a recomputation differ, here as in
transformers. Source: Pope et al. (2022), section 3.3.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from course_pkg.acceleration.attention import plain
from course_pkg.common.arguments import require_integer
from course_pkg.lm.decoder import Decoder, causal_attend
from course_pkg.lm.decoder_config import DecoderConfig


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
        """Keep new tokens, (batch, kv_heads, new, head_dim); return what they may attend to.

        It is in the order of the tokens; only a ring may permute it, for a single new token.
        """

    def can_truncate(self, tokens: int) -> bool:
        """Whether `truncate(tokens)` leaves all that later tokens may attend to."""
        return True

    def truncate(self, tokens: int) -> None:
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
        """Write into the free part. The result is a view, valid until the next append."""
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

    The scale is the largest absolute value / 127, so the error is at most half a scale.
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
    expected, shape = ((batch, heads, dim) for batch, heads, _, dim in (held.shape, new.shape))
    if expected != shape:
        raise ValueError(
            f"the cache was made for (batch, kv_heads, head_dim) = {expected}, got {shape}: make a "
            "new cache for another batch or model"
        )


class KVCache(ABC):
    """The keys and values of all layers; a subclass says how a layer's are stored.

    Args:
        key_mask: (batch, tokens), false at the padding before the first token of each prompt; later
            tokens are real.
        eight_bit: store int8 codes and one scale per token and head.
        attention: as `course_pkg.acceleration.attention.plain.attention`.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        key_mask: Tensor | None = None,
        eight_bit: bool = False,
        attention: Callable[..., Tensor] = plain.attention,
    ):
        self.config = config
        self.attention = attention
        self.pads = None if key_mask is None else _left_pads(key_mask)  # (batch,)
        new = [partial(self.new_storage, layer) for layer in range(config.layers)]
        self.layers = [Int8(make) if eight_bit else make() for make in new]

    @abstractmethod
    def new_storage(self, layer: int) -> Storage:
        """An empty storage for one layer."""

    @property
    def tokens(self) -> int:
        """How many tokens have passed all layers, padding included."""
        return min(storage.length for storage in self.layers)

    @property
    def bytes(self) -> int:
        return sum(storage.bytes for storage in self.layers)

    def positions(self, new: int) -> Tensor:
        """The positions of the next `new` tokens: (new,), or (batch, new) if there is padding.

        A prompt's first real token has position 0; its padding gets 0 too, which nothing sees.
        """
        index = torch.arange(self.tokens, self.tokens + new)  # (new,)
        if self.pads is None:
            return index
        return (index.to(self.pads.device) - self.pads[:, None]).clamp(min=0)  # (batch, new)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Keep the new tokens' keys and values; let their queries attend to all that is kept.

        Args:
            query: (batch, heads, new, head_dim); the result has the same shape.
            key, value: (batch, kv_heads, new, head_dim).
        """
        kept = self.layers[layer].append(key, value)
        window = self.config.window(layer)
        return self.attention(
            query,
            kept.key,
            kept.value,
            causal=query.shape[2] > 1,  # a single new token is the last: it sees all
            window=window if window and window < len(kept.index) else None,
            key_mask=None if self.pads is None else kept.index >= self.pads[:, None],
        )

    def truncate(self, tokens: int) -> None:
        """Forget all but the first `tokens` tokens: a rejected guess, or all after a shared prefix.

        Raises:
            ValueError: a sliding window has overwritten tokens that the next one would see; then
                nothing changes.
        """
        if not 0 <= tokens <= self.tokens:
            raise ValueError(f"the cache holds {self.tokens} tokens, so it cannot keep {tokens}")
        if not all(storage.can_truncate(tokens) for storage in self.layers):
            raise ValueError(
                f"token {tokens} would see tokens that the sliding window has overwritten: "
                "reset the cache and compute them again, or use a ContiguousCache"
            )
        for storage in self.layers:
            storage.truncate(tokens)

    def reset(self) -> None:
        """Forget all tokens; a key_mask still holds for those that come next."""
        for storage in self.layers:
            storage.truncate(0)


class ContiguousCache(KVCache):
    """Tensors that grow with every token; each growth copies them."""

    def new_storage(self, layer: int) -> Storage:
        return Contiguous()


class StaticCache(KVCache):
    """Tensors for `capacity` tokens, allocated once: no copies."""

    def __init__(self, config: DecoderConfig, capacity: int, **options):
        self.capacity = require_integer(capacity, "capacity")
        super().__init__(config, **options)

    def new_storage(self, layer: int) -> Storage:
        return Static(self.capacity)


class SlidingWindowCache(KVCache):
    """Each layer with a window keeps only its last `window` tokens."""

    def __init__(self, config: DecoderConfig, **options):
        if not any(config.windows):
            raise ValueError("no layer of this model has a sliding window: use a ContiguousCache")
        super().__init__(config, **options)

    def new_storage(self, layer: int) -> Storage:
        window = self.config.window(layer)
        return Contiguous() if window is None else Ring(window)


@torch.no_grad()
def generate(model: Decoder, ids: Tensor, new_tokens: int, cache: KVCache) -> Tensor:
    """The most likely next tokens, one after another: (batch, new_tokens).

    Args:
        ids: (batch, tokens), the prompts, or what follows the tokens in the cache. The last new
            token is not in the cache afterwards.
    """
    _check_prompts(ids, new_tokens)
    new = []
    for _ in range(new_tokens):
        logits = model(ids, cache.positions(ids.shape[1]), cache.attend, last_only=True)
        ids = logits[:, -1].argmax(-1, keepdim=True)  # (batch, 1)
        new.append(ids)
    return torch.cat(new, dim=1)


@torch.no_grad()
def recompute(
    model: Decoder, ids: Tensor, new_tokens: int, *, key_mask: Tensor | None = None
) -> Tensor:
    """As `generate`, without a cache: every step computes all tokens again.

    Args:
        key_mask: (batch, tokens), false at padding on the left of the prompts.
    """
    _check_prompts(ids, new_tokens)
    real = torch.ones_like(ids) if key_mask is None else key_mask.long()  # (batch, tokens)
    for _ in range(new_tokens):
        attend = causal_attend(model.config, None if key_mask is None else real)
        positions = real.cumsum(1) - 1  # (batch, tokens), 0 at the first real token
        best = model(ids, positions, attend, last_only=True)[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat((ids, best), dim=1)  # (batch, tokens + 1)
        real = torch.cat((real, torch.ones_like(best)), dim=1)  # (batch, tokens + 1)
    return ids[:, -new_tokens:]


def cache_bytes(
    layers: int,
    kv_heads: int,
    head_dim: int,
    tokens: int,
    batch: int = 1,
    bytes_per_value: float = 2,
) -> int:
    """The memory of keys and values: 2 · layers · kv_heads · head_dim · tokens · batch · bytes.

    Args:
        kv_heads: as many as query heads for multi-head attention (MHA), fewer for grouped queries
            (GQA), 1 for multi-query (MQA).
        bytes_per_value: 2 in 16 bits; 1 + 4 / head_dim for 8 bits with fp32 scales.

    Example:

        >>> cache_bytes(layers=32, kv_heads=32, head_dim=128, tokens=4096) // 2**20  # Llama-2-7B
        2048
    """
    return round(2 * layers * kv_heads * head_dim * tokens * batch * bytes_per_value)


def latent_cache_bytes(
    layers: int,
    latent_dim: int,
    rope_dim: int,
    tokens: int,
    batch: int = 1,
    bytes_per_value: float = 2,
) -> int:
    """The memory of multi-head latent attention (MLA): one latent and one rotated key per token.

    Args:
        latent_dim: numbers that keys and values of all heads are computed from.
        rope_dim: numbers of the rotated part of the key, which the heads share.

    Source: DeepSeek-V2 (2024), section 2.1.4 and table 1: (d_c + d_h^R) · l numbers per token.
    """
    return round(layers * (latent_dim + rope_dim) * tokens * batch * bytes_per_value)


def step_intensity(
    *,
    weights: int,
    layers: int,
    query_heads: int,
    kv_heads: int,
    head_dim: int,
    sequences: int,
    new_tokens: int,
    tokens: int,
    bytes_per_value: float = 2,
) -> float:
    """Operations per byte of a step that computes new_tokens for each of some sequences.

    Counted are products and sums with the causal half of attention; as bytes the weights, read
    once, and each sequence's cache, read or written once. Activations are not.

    Args:
        weights: numbers in the matrices that every token is multiplied by.
        tokens: each sequence's text after the step, so new_tokens == tokens is the prefill of a
            whole prompt.

    Example:

        >>> shape = dict(weights=100, layers=1, query_heads=2, kv_heads=1, head_dim=5)
        >>> step_intensity(**shape, sequences=1, new_tokens=1, tokens=10)  # (200 + 400) / (2 * 200)
        1.5
    """
    require_integer(sequences, "sequences")
    require_integer(new_tokens, "new_tokens")
    if new_tokens > tokens:
        raise ValueError(
            f"new_tokens is {new_tokens}, and tokens {tokens}: the text includes the new tokens"
        )
    pairs = new_tokens * (2 * tokens - new_tokens + 1) / 2  # of a new token and one that it sees
    linear = 2 * weights * sequences * new_tokens
    attention = 4 * layers * query_heads * head_dim * sequences * pairs
    cache = 2 * layers * kv_heads * head_dim * sequences * tokens
    return (linear + attention) / ((weights + cache) * bytes_per_value)


def _left_pads(key_mask: Tensor) -> Tensor:
    """How many positions of padding each row begins with, (batch,)."""
    if key_mask.dim() == 2:
        real = key_mask.bool()
        pads = (~real).sum(1)  # (batch,)
        left = torch.arange(real.shape[1], device=real.device) >= pads[:, None]  # (batch, tokens)
        if torch.equal(real, left) and real.any(1).all():
            return pads
    raise ValueError(
        "key_mask must be (batch, tokens), each row first false, then at least once true: "
        "pad prompts on the left"
    )


def _check_prompts(ids: Tensor, new_tokens: int) -> None:
    if ids.dim() != 2 or ids.shape[1] == 0 or new_tokens < 1:
        raise ValueError(
            f"ids has shape {tuple(ids.shape)}, and new_tokens is {new_tokens}: expected (batch, "
            "tokens) with at least one token, and at least 1"
        )
