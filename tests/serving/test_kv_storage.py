"""Storages return what was appended, in their order, within their memory; and step back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.serving.kv_cache import Contiguous, Int8, Ring, Static, dequantize, quantize
from tests.tables import each_row

WINDOW = 4
SHAPE = (2, 3, 1, 2)  # batch, kv_heads, one token, head_dim
BYTES = 2 * 2 * 3 * 2 * 4  # of one token: key and value, batch, heads, head_dim, fp32


def token(index, like=SHAPE):
    """A key whose numbers are the token's index, and a value whose numbers are 1000 more."""
    return torch.full(like, float(index)), torch.full(like, 1000.0 + index)


def append(storage, *indices):
    """Append tokens; return the indices that the keys, the values and `index` report."""
    keys, values = zip(*map(token, indices), strict=True)
    kept = storage.append(torch.cat(keys, 2), torch.cat(values, 2))
    assert kept.key.shape == kept.value.shape == (2, 3, len(kept.index), 2)
    assert (kept.key == kept.index[:, None]).all() and (kept.value == kept.key + 1000).all()
    return kept.index.tolist()


def test_a_static_storage_never_moves_and_can_be_full():
    storage = Static(3)
    append(storage, 0)
    held = storage.held[0].data_ptr()
    append(storage, 1)
    with pytest.raises(ValueError, match="full: 2 of 3 tokens are used, and 2 more do not fit; "):
        append(storage, 2, 3)
    assert append(storage, 2) == [0, 1, 2] and storage.held[0].data_ptr() == held


@given(st.integers(1, 5), st.lists(st.integers(1, 7) | st.tuples(st.integers(0, 12)), max_size=12))
def test_a_ring_shows_every_token_in_the_window_of_each_new_one(window, steps):
    # A number appends that many tokens; a tuple truncates to that many if the ring allows it.
    storage = Ring(window)
    for step in steps:
        start = storage.length
        if isinstance(step, tuple):
            if step[0] <= start and storage.can_truncate(step[0]):
                storage.truncate(step[0])
            continue
        keys, values = zip(*map(token, range(start, start + step)), strict=True)
        kept = storage.append(torch.cat(keys, 2), torch.cat(values, 2))
        seen = set(range(max(0, start - window + 1), start + step))
        shown = dict(zip(kept.index.tolist(), kept.key[0, 0, :, 0].tolist(), strict=True))
        assert all(shown[index] == index for index in seen)
        assert step > 1 or shown.keys() == seen  # a single query needs no mask
        assert step == 1 or list(shown) == sorted(shown)


def test_a_ring_can_step_back_to_any_token_until_it_overwrites_and_then_by_one():
    storage = Ring(WINDOW)
    append(storage, 0, 1, 2, 3)
    assert all(storage.can_truncate(tokens) for tokens in range(5))
    append(storage, 4, 5)
    assert [tokens for tokens in range(7) if storage.can_truncate(tokens)] == [0, 5, 6]
    storage.truncate(5)
    assert not storage.can_truncate(4)  # token 4 would see token 1, which token 5 overwrote
    assert sorted(append(storage, 5)) == [2, 3, 4, 5]
    storage.truncate(0)
    assert append(storage, 0, 1) == [0, 1] and storage.can_truncate(1)


@each_row("make", [Contiguous, lambda: Static(9), lambda: Ring(WINDOW)])
@each_row("shape", [(1, 3, 1, 2), (2, 1, 1, 2), (2, 3, 1, 4)])
def test_another_batch_or_model_is_refused(make, shape):
    storage = make()
    append(storage, 0)
    message = r"made for \(batch, kv_heads, head_dim\) = \(2, 3, 2\), got .*: make a new cache"
    with pytest.raises(ValueError, match=message):
        storage.append(*token(1, shape))


@each_row("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_row("factor", [1e-6, 1.0, 1e4])
def test_the_error_is_at_most_half_a_scale(dtype, factor):
    x = (torch.randn(2, 3, 50, 8, generator=torch.Generator().manual_seed(0)) * factor).to(dtype)
    x[0] = 0  # zeros stay zeros
    codes, scales = quantize(x)
    assert scales.shape == (2, 3, 50, 1) and not scales[0].any() and codes.dtype == torch.int8
    assert ((dequantize(codes, scales) - x.float()).abs() <= scales * 0.50001).all()


@each_row("make", [Contiguous, lambda: Static(9), lambda: Ring(WINDOW)])
def test_eight_bits_in_any_storage(make):
    exact = make()
    small = Int8(make)
    generator = torch.Generator().manual_seed(0)
    for new in (3, 1, 1, 2):
        key, value = torch.randn(2, 2, 3, new, 64, generator=generator).half()
        kept = exact.append(key, value)
        restored = small.append(key, value)
        assert torch.equal(kept.index, restored.index) and restored.key.dtype == torch.float16
        for full, rounded in ((kept.key, restored.key), (kept.value, restored.value)):
            limit = full.abs().amax(-1, keepdim=True).float() * (1 / 254 + 2**-11)
            assert ((full.float() - rounded.float()).abs() <= limit).all()
    assert small.length == exact.length == 7
    assert small.bytes / exact.bytes == pytest.approx((64 + 4) / (64 * 2))
    assert small.can_truncate(6) == exact.can_truncate(6)
    small.truncate(6)
    assert small.length == 6
    assert small.append(*(tensor[:, :, :1] for tensor in (key, value))).index.max() == 6
