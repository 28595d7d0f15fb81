"""Attention by the formula and in tiles: by hand, against torch's, and on rows that see nothing."""

import math
from functools import partial

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from course_pkg.acceleration.attention.decode import decode_attention
from course_pkg.acceleration.attention.flash import flash_attention
from course_pkg.acceleration.attention.flash_triton import flash_attention_triton
from course_pkg.acceleration.attention.masks import visible
from course_pkg.acceleration.attention.philox import keep_mask
from course_pkg.acceleration.attention.plain import attention
from tests.refusals import wrong_refusals

from .examples import tensors

tiled = partial(flash_attention, block_queries=2, block_keys=3)
BOTH = pytest.mark.parametrize("function", [attention, tiled], ids=["plain", "in tiles"])


@BOTH
def test_two_keys_by_hand(function):
    # Scores 1·ln 3 and 0, so weights 3/4 and 1/4; the output is (3·4 + 1·8) / 4 = 5.
    query = torch.tensor([[[[1.0]]]])
    key = torch.tensor([[[[math.log(3)], [0.0]]]])
    value = torch.tensor([[[[4.0], [8.0]]]])
    output, lse = function(query, key, value, return_lse=True)
    assert output.item() == pytest.approx(5)
    assert lse.item() == pytest.approx(math.log(4))  # log(3 + 1)


@BOTH
@pytest.mark.parametrize(
    ("kv_heads", "value_dim", "causal"), [(1, 8, True), (2, 3, False), (2, 3, True), (6, 8, False)]
)
def test_output_and_gradients_equal_torchs(function, kv_heads, value_dim, causal):
    inputs = tensors(2, 6, kv_heads, 7, 11, value_dim=value_dim)
    ours = function(*inputs, causal=causal)
    expected = sdpa(*inputs, attn_mask=visible(7, 11, causal=causal), enable_gqa=True)
    torch.testing.assert_close(ours, expected)
    grad = torch.rand_like(ours)
    torch.testing.assert_close(
        torch.autograd.grad(ours, inputs, grad), torch.autograd.grad(expected, inputs, grad)
    )


@BOTH
def test_a_window_and_a_key_mask_and_a_scale_equal_torchs(function):
    query, key, value = tensors(2, 4, 2, 9, 9)
    key_mask = torch.ones(2, 9, dtype=torch.bool)
    key_mask[0, [1, 4]] = False
    key_mask[1, [2, 3]] = False
    mask = visible(9, 9, causal=True, window=3, key_mask=key_mask)
    ours = function(query, key, value, causal=True, window=3, key_mask=key_mask, scale=0.7)
    expected = sdpa(query, key, value, attn_mask=mask, scale=0.7, enable_gqa=True)
    torch.testing.assert_close(ours, expected)


@BOTH
def test_the_output_keeps_its_type_and_the_lse_is_at_least_float32(function):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        output, lse = function(*(t.to(dtype) for t in tensors(1, 2, 1, 3, 5)), return_lse=True)
        assert output.dtype == dtype
        assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@BOTH
def test_rows_that_see_nothing_have_output_0_lse_minus_infinity_and_gradient_0(function):
    inputs = tensors(2, 2, 1, 6, 4)  # causal: the first two queries see nothing
    key_mask = torch.tensor([[True] * 4, [False] * 4])  # the second sequence is all padding
    output, lse = function(*inputs, causal=True, key_mask=key_mask, return_lse=True)
    for empty in (output[0, :, :2], output[1]):
        assert empty.eq(0).all()
    for empty in (lse[0, :, :2], lse[1]):
        assert empty.eq(-torch.inf).all()
    assert lse[0, :, 2:].isfinite().all()
    for loss in (output.sum() + lse[0, :, 2:].sum(), lse[1].sum()):  # even −inf has gradient 0
        query, key, value = torch.autograd.grad(
            loss, inputs, retain_graph=True, materialize_grads=True
        )
        assert query[0, :, :2].eq(0).all() and query[1].eq(0).all()
        assert key[1].eq(0).all() and value[1].eq(0).all()
        assert all(tensor.isfinite().all() for tensor in (query, key, value))
    assert not any(tensor.any() for tensor in (query, key, value))


@BOTH
@pytest.mark.parametrize(("queries", "keys"), [(3, 0), (0, 3), (0, 0)])
def test_no_keys_and_no_queries(function, queries, keys):
    inputs = tensors(2, 4, 2, queries, keys)
    for options in ({}, {"causal": True}, {"dropout": 0.5}):
        output, lse = function(*inputs, **options, return_lse=True)
        assert output.shape == (2, 4, queries, 8) and output.eq(0).all()
        assert lse.shape == (2, 4, queries) and lse.eq(-torch.inf).all()
        assert function(*(t[:0] for t in inputs), **options).shape == (0, 4, queries, 8)


@BOTH
def test_dropout_zeroes_probabilities_after_the_softmax_and_rescales_the_rest(function):
    query, key, _ = tensors(2, 2, 1, 4, 6)
    value = torch.eye(6, dtype=torch.float64).expand(2, 1, 6, 6)  # the output is the probabilities
    whole = function(query, key, value)
    dropped = function(query, key, value, dropout=0.4, seed=5)
    head = torch.arange(4)[:, None, None]
    keep = keep_mask(5, head, torch.arange(4)[:, None], torch.arange(6), 0.4).view(2, 2, 4, 6)
    torch.testing.assert_close(dropped, whole * keep / 0.6)
    assert 0 < keep.sum() < keep.numel()


def test_large_float16_scores_do_not_overflow():
    # 64 · 40 · 40 = 102,400 exceeds float16's 65,504; divided by √64 it is 12,800 and fits.
    query = torch.full((1, 1, 1, 64), 40.0, dtype=torch.float16)
    assert attention(query, query, query).eq(40).all()


@BOTH
def test_every_tensor_is_made_on_the_device_of_the_inputs(function):
    inputs = tensors(2, 2, 1, 5, 6)
    key_mask = torch.ones(2, 6, dtype=torch.bool)
    key_mask[1, 3:] = False
    options = {"causal": True, "window": 2, "key_mask": key_mask, "dropout": 0.1}
    with torch.device("meta"):  # a tensor made without a device would be here
        output = function(*inputs, **options, score_mod=lambda s, h, q, k: s - (q - k).abs())
        gradients = torch.autograd.grad(output.sum(), inputs)
    assert {tensor.device.type for tensor in (output, *gradients)} == {"cpu"}


# ---------------------------------------------------------------- score_mod


@BOTH
def test_score_mod_receives_indices_that_broadcast_and_positions_of_the_queries(function):
    seen = {"head": set(), "query": set(), "key": set()}

    def alibi(scores, head, query, key):  # with slopes 0 and 1
        assert (head.dim(), query.dim(), key.dim()) == (3, 2, 1)
        for name, index in (("head", head), ("query", query), ("key", key)):
            seen[name].update(index.flatten().tolist())
        return scores - head * (query - key).abs()

    query, key, value = tensors(1, 2, 1, 2, 3)
    output = function(query, key, value, score_mod=alibi)
    assert seen == {"head": {0, 1}, "query": {1, 2}, "key": {0, 1, 2}}
    bias = torch.tensor([[1, 0, 1], [2, 1, 0]], dtype=torch.float64)
    bias = -torch.stack([torch.zeros_like(bias), bias])[None]
    expected = sdpa(query, key, value, attn_mask=bias, enable_gqa=True)
    torch.testing.assert_close(output, expected)


def transposed(scores, head, query, key):
    """The scores of a tensor that has keys before queries: not contiguous."""
    return (scores.mT.contiguous() - 0.1 * (query - key).mT).mT


def expanded(scores, head, query, key):
    """One row for all heads and sequences, without the scores."""
    return (0.1 * (query - key)).to(scores.dtype).expand_as(scores)


def in_place(scores, head, query, key):
    """The argument itself, changed."""
    return scores.mul_(2)


@BOTH
def test_a_score_mod_may_return_integers(function):
    inputs = [tensor.detach() for tensor in tensors(1, 4, 2, 3, 5)]
    output = function(*inputs, causal=True, score_mod=lambda s, _, q, k: (k - q).expand_as(s))
    expected = attention(*inputs, causal=True, score_mod=lambda s, _, q, k: 0 * s + (k - q))
    torch.testing.assert_close(output, expected)


@BOTH
@pytest.mark.parametrize("score_mod", [transposed, expanded, in_place])
def test_a_score_mod_of_grouped_heads_may_return_a_view_or_its_argument(function, score_mod):
    """Checked against key heads that are repeated, and a function whose result is contiguous."""
    query, key, value = tensors(2, 4, 2, 5, 7)
    repeated = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    output = function(query, key, value, score_mod=score_mod)
    expected = attention(
        query, *repeated, score_mod=lambda *arguments: score_mod(*arguments).contiguous()
    )
    torch.testing.assert_close(output, expected)
    gradients, expected_gradients = (
        torch.autograd.grad(tensor.square().sum(), (query, key, value), materialize_grads=True)
        for tensor in (output, expected)
    )
    torch.testing.assert_close(gradients, expected_gradients)


@BOTH
def test_a_score_mod_that_returns_another_shape_is_refused(function):
    with pytest.raises(ValueError, match="it must return one score for each"):
        function(*tensors(1, 2, 2, 3, 4), score_mod=lambda s, *_: s[..., :1])


# ---------------------------------------------------------------- arguments

T = torch.zeros
SHAPES = r"expected \(batch, heads, queries, head_dim\).* heads a multiple of kv_heads"


def test_tensors_that_do_not_fit_are_refused():
    refused = [
        (T(2, 1, 4), T(1, 2, 3, 4), T(1, 2, 3, 4), ValueError, SHAPES),
        (T(1, 2, 1, 4), T(1, 2, 3, 4), T(1, 2, 5, 4), ValueError, SHAPES),
        (T(2, 2, 1, 4), T(1, 2, 3, 4), T(1, 2, 3, 4), ValueError, SHAPES),
        (T(1, 2, 1, 5), T(1, 2, 3, 4), T(1, 2, 3, 4), ValueError, SHAPES),
        (T(1, 2, 1, 0), T(1, 2, 3, 0), T(1, 2, 3, 4), ValueError, "head_dim at least 1"),
        (T(1, 3, 1, 4), T(1, 2, 3, 4), T(1, 2, 3, 4), ValueError, SHAPES),
        (T(1, 2, 1, 4), T(1, 0, 3, 4), T(1, 0, 3, 4), ValueError, SHAPES),
        (T(1, 2, 1, 4), T(1, 2, 3, 4).half(), T(1, 2, 3, 4), TypeError, "one floating-point type"),
        (*[T(1, 2, 1, 4).int()] * 3, TypeError, "one floating-point type"),
        (T(1, 2, 1, 4), *[T(1, 2, 3, 4, device="meta")] * 2, ValueError, "move them to one device"),
    ]
    functions = (flash_attention, flash_attention_triton, partial(decode_attention, splits=2))
    calls = [(attention, *row) for row in refused] + [
        (function, *refused[0]) for function in functions
    ]
    assert not wrong_refusals(
        (partial(function, *inputs), error, message) for function, *inputs, error, message in calls
    )


def test_options_that_do_not_fit_are_refused():
    refused = [
        ({"window": 0}, ValueError, "window must be an integer of at least 1, got 0"),
        ({"dropout": 1.0}, ValueError, "dropout must be at least 0 and below 1, got 1.0"),
        ({"key_mask": T(1, 5)}, TypeError, "give bool, True for a real key"),
        ({"key_mask": T(1, 4).bool()}, ValueError, r"\(1, 4\) on cpu: expected \(batch, keys\), h"),
        ({"key_mask": T(1, 5, device="meta").bool()}, ValueError, r"on meta: .* \(1, 5\), on cpu"),
    ]
    inputs = T(1, 2, 3, 4), T(1, 2, 5, 4), T(1, 2, 5, 4)
    assert not wrong_refusals(
        (partial(function, *inputs, **options), error, message)
        for options, error, message in refused
        for function in (attention, flash_attention)
    )
