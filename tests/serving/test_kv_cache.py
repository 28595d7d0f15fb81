"""Storages, and caches: a prompt in parts, positions, truncation, bytes, errors.

Equality with transformers' generate is tested in tests/parity/test_transformers_kv_cache.py.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.acceleration.attention import plain
from course_pkg.serving.kv_cache import (
    Contiguous,
    ContiguousCache,
    Int8,
    Ring,
    SlidingWindowCache,
    Static,
    StaticCache,
    cache_bytes,
    dequantize,
    generate,
    quantize,
    recompute,
)
from tests.refusals import require_refusals
from tests.serving.engines import random_decoder
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


TOKEN_BYTES = 2 * 2 * 2 * 16 * 4  # keys and values, 2 layers, 2 kv heads of 16, fp32
IDS = torch.randint(259, (2, 7), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[False] * 3 + [True] * 4, [True] * 7])


CASES = {  # windows of the two layers; a cache
    "contiguous": ((None, None), ContiguousCache),
    "contiguous, window": ((WINDOW, WINDOW), ContiguousCache),
    "static": ((None, None), lambda config, **options: StaticCache(config, 30, **options)),
    "static, window": ((WINDOW, None), lambda config, **o: StaticCache(config, 30, **o)),
    "sliding": ((WINDOW, WINDOW), SlidingWindowCache),
    "sliding, one layer": ((None, WINDOW), SlidingWindowCache),
    "sliding, window of 1": ((1, 1), SlidingWindowCache),
    "sliding, window of the prompt": ((7, 7), SlidingWindowCache),
}


@each_row("case", CASES)
@each_row("mask", [None, MASK])
@each_row("parts", [(3, 4), (1, 1, 5), (2, 2, 2, 1)])
def test_a_prompt_in_parts_gives_the_logits_of_the_whole(case, mask, parts):
    windows, make = CASES[case]
    model = random_decoder(*windows)
    cache = make(model.config, key_mask=mask)
    whole = ContiguousCache(model.config, key_mask=mask)
    logits = [
        model(part, cache.positions(part.shape[1]), cache.attend) for part in IDS.split(parts, 1)
    ]
    expected = model(IDS, whole.positions(7), whole.attend)
    assert torch.allclose(torch.cat(logits, 1), expected, atol=1e-3)  # the logits are about 50


def test_no_graph_is_kept_and_truncation_repairs_a_failed_forward_pass():
    model = random_decoder().requires_grad_()
    cache = ContiguousCache(model.config)
    generate(model, IDS, 2, cache)
    assert not cache.layers[0].held[0].requires_grad
    model = random_decoder()
    cache = ContiguousCache(model.config)
    generate(model, IDS, 1, cache)

    def broken(layer, query, key, value):
        if layer == 1:
            raise RuntimeError("out of memory")
        return cache.attend(layer, query, key, value)

    with pytest.raises(RuntimeError):
        model(IDS[:, :1], cache.positions(1), broken)
    assert cache.tokens == 7
    cache.truncate(7)
    assert {storage.length for storage in cache.layers} == {7}


def test_positions_continue_and_begin_after_the_padding():
    config = random_decoder().config
    cache = ContiguousCache(config, key_mask=MASK)
    assert cache.positions(7).tolist() == [[0, 0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6]]
    generate(random_decoder(), IDS, 1, cache)
    assert cache.positions(2).tolist() == [[4, 5], [7, 8]]
    assert ContiguousCache(config).positions(3).tolist() == [0, 1, 2]


def test_a_step_computes_one_query_against_all_keys():
    seen = []

    def watch(query, key, value, **options):
        seen.append((query.shape[2], key.shape[2]))
        return plain.attention(query, key, value, **options)

    model = random_decoder()
    generate(model, IDS, 3, ContiguousCache(model.config, attention=watch))
    assert seen == [(7, 7)] * 2 + [(1, 8)] * 2 + [(1, 9)] * 2  # in both layers


@each_row("case", ["contiguous", "static"])
def test_after_truncation_another_continuation_is_as_if_it_came_first(case):
    windows, make = CASES[case]
    model = random_decoder(*windows)
    cache = make(model.config)
    generate(model, IDS, 5, cache)
    cache.truncate(4)  # the first 4 tokens are a prefix that another prompt shares
    other = torch.cat((IDS[:, :4], IDS[:, :3]), 1)
    tokens = generate(model, other[:, 4:], 6, cache)
    assert tokens.tolist() == recompute(model, other, 6).tolist()
    cache.reset()
    assert cache.tokens == 0
    assert generate(model, IDS, 5, cache).tolist() == recompute(model, IDS, 5).tolist()


def test_a_sliding_window_takes_back_one_token_and_no_more():
    model = random_decoder(None, WINDOW)
    cache = SlidingWindowCache(model.config)
    tokens = generate(model, IDS, 6, cache)
    cache.truncate(11)  # of 12
    again = generate(model, tokens[:, 4:5], 2, cache)
    assert again.tolist() == recompute(model, torch.cat((IDS, tokens[:, :5]), 1), 2).tolist()
    with pytest.raises(ValueError, match="token 10 would see tokens that the sliding window has o"):
        cache.truncate(10)
    assert [storage.length for storage in cache.layers] == [13, 13]  # unchanged
    cache.reset()
    assert generate(model, IDS, 6, cache).tolist() == tokens.tolist()


def test_bytes_of_the_caches():
    model = random_decoder(WINDOW, WINDOW)
    grown = ContiguousCache(model.config)
    fixed = StaticCache(model.config, 50)
    ring = SlidingWindowCache(model.config)
    small = ContiguousCache(model.config, eight_bit=True)
    assert grown.bytes == fixed.bytes == ring.bytes == 0  # memory comes with the first tokens
    for cache in (grown, fixed, ring, small):
        generate(model, IDS, 4, cache)
    assert grown.bytes == 2 * 10 * TOKEN_BYTES == cache_bytes(2, 2, 16, 10, 2, bytes_per_value=4)
    assert fixed.bytes == 2 * 50 * TOKEN_BYTES
    assert ring.bytes == 2 * WINDOW * TOKEN_BYTES
    assert small.bytes == cache_bytes(2, 2, 16, 10, 2, bytes_per_value=1 + 4 / 16)


def masked(key_mask):
    return ContiguousCache(random_decoder().config, key_mask=torch.tensor(key_mask))


def test_bad_arguments():
    require_refusals(
        (lambda: masked([[False, True, False, True]]), "pad prompts on the left"),
        (lambda: masked([[True, True], [False, False]]), "pad prompts on the left"),
        (lambda: masked([True]), r"key_mask must be \(batch, tokens\)"),
        (
            lambda: StaticCache(random_decoder().config, 0),
            "capacity must be an integer of at least 1",
        ),
        (
            lambda: SlidingWindowCache(random_decoder().config),
            "no layer of this model has a sliding",
        ),
        (lambda: recompute(random_decoder(), IDS[0], 1), r"expected \(batch, tokens\) with at"),
        (lambda: recompute(random_decoder(), IDS[:, :0], 1), r"expected \(batch, tokens\) with at"),
    )


@each_row(
    ("use", "message"),
    [
        (lambda model, cache: cache.truncate(-1), "holds 7 tokens, so it cannot keep -1"),
        (lambda model, cache: cache.truncate(8), "holds 7 tokens, so it cannot keep 8"),
        (lambda model, cache: generate(model, IDS[:, :1], 4, cache), "full: 9 of 9 tokens"),
        (lambda model, cache: generate(model, IDS, 0, cache), "at least one token, and at least 1"),
        (lambda model, cache: model(IDS[:1, :1], attend=cache.attend), "made for"),
    ],
)
def test_a_cache_that_cannot_do_that(use, message):
    model = random_decoder()
    cache = StaticCache(model.config, 9)
    generate(model, IDS, 1, cache)
    with pytest.raises(ValueError, match=message):
        use(model, cache)
