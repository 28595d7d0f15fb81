"""Plain attention: by hand, against torch's, and on rows that see nothing."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from course_pkg.attention.masks import visible
from course_pkg.attention.philox import keep_mask
from course_pkg.attention.plain import attention, attention_with_lse

from .examples import tensors


def test_two_keys_by_hand():
    # Scores 1·ln 3 and 0, so weights 3/4 and 1/4; the output is (3·4 + 1·8) / 4 = 5.
    query = torch.tensor([[[[1.0]]]])
    key, value = torch.tensor([[[[math.log(3)], [0.0]]]]), torch.tensor([[[[4.0], [8.0]]]])
    output, lse = attention_with_lse(query, key, value)
    assert output.item() == pytest.approx(5)
    assert lse.item() == pytest.approx(math.log(4))  # log(3 + 1)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("value_dim", [8, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_output_and_gradients_equal_torchs(kv_heads, value_dim, causal):
    mine = tensors(2, 6, kv_heads, 7, 11, value_dim=value_dim)
    theirs = [t.detach().clone().requires_grad_() for t in mine]
    mask = visible(7, 11, causal=causal)
    ours = attention(*mine, causal=causal)
    expected = sdpa(*theirs, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(ours, expected)
    grad = torch.randn(ours.shape, dtype=torch.float64)
    ours.backward(grad), expected.backward(grad)
    torch.testing.assert_close([t.grad for t in mine], [t.grad for t in theirs])


def test_a_window_and_a_key_mask_and_a_scale_equal_torchs():
    query, key, value = tensors(2, 4, 2, 9, 9)
    key_mask = torch.ones(2, 9, dtype=torch.bool)
    key_mask[0, [1, 4]], key_mask[1, [2, 3]] = False, False
    mask = visible(9, 9, causal=True, window=3, key_mask=key_mask)
    ours = attention(query, key, value, causal=True, window=3, key_mask=key_mask, scale=0.7)
    expected = sdpa(query, key, value, attn_mask=mask, scale=0.7, enable_gqa=True)
    torch.testing.assert_close(ours, expected)


def test_the_lse_is_that_of_the_scaled_scores():
    query, key, value = tensors(1, 2, 2, 3, 5)
    _, lse = attention_with_lse(query, key, value)
    torch.testing.assert_close(lse, (query @ key.mT / math.sqrt(8)).logsumexp(-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_output_keeps_its_type_and_the_lse_is_at_least_float32(dtype):
    output, lse = attention_with_lse(*(t.to(dtype) for t in tensors(1, 2, 1, 3, 5)))
    assert output.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_rows_that_see_nothing_have_output_0_lse_minus_infinity_and_gradient_0():
    inputs = tensors(1, 2, 2, 5, 2)  # causal with 5 queries and 2 keys: the first 3 see nothing
    output, lse = attention_with_lse(*inputs, causal=True)
    assert output[:, :, :3].eq(0).all() and lse[:, :, :3].eq(-torch.inf).all()
    assert lse[:, :, 3:].isfinite().all()
    (output.sum() + lse[:, :, 3:].sum()).backward()
    assert inputs[0].grad[:, :, :3].eq(0).all()
    assert all(t.grad.isfinite().all() for t in inputs)


def test_the_gradient_of_a_rows_lse_of_minus_infinity_is_0():
    inputs = tensors(1, 2, 2, 5, 2)
    attention_with_lse(*inputs, causal=True)[1][:, :, :3].sum().backward()
    assert all(t.grad.eq(0).all() for t in inputs[:2])  # the lse doesn't depend on the values


def test_a_hook_that_hides_all_keys_gives_output_0():
    inputs = tensors(1, 2, 2, 3, 4)
    output, lse = attention_with_lse(
        *inputs, score_hook=lambda scores, *_: torch.full_like(scores, -torch.inf)
    )
    assert output.eq(0).all() and lse.eq(-torch.inf).all()


@pytest.mark.parametrize(("queries", "keys"), [(3, 0), (0, 3), (0, 0)])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"dropout": 0.5}])
def test_no_keys_and_no_queries(queries, keys, options):
    inputs = tensors(2, 4, 2, queries, keys)
    output, lse = attention_with_lse(*inputs, **options)
    assert output.shape == (2, 4, queries, 8) and output.eq(0).all()
    assert lse.shape == (2, 4, queries) and lse.eq(-torch.inf).all()
    assert attention(*(t[:0] for t in inputs), **options).shape == (0, 4, queries, 8)


def test_the_hook_receives_indices_that_broadcast_and_positions_of_the_queries():
    seen = {}

    def hook(scores, head, query, key):
        seen.update(head=head.tolist(), query=query.tolist(), key=key.tolist())
        return scores - head * (query - key).abs()  # ALiBi with slopes 0 and 1

    query, key, value = tensors(1, 2, 1, 2, 3)
    output = attention(query, key, value, score_hook=hook)
    assert seen == {"head": [[[0]], [[1]]], "query": [[1], [2]], "key": [0, 1, 2]}
    bias = torch.tensor([[1, 0, 1], [2, 1, 0]], dtype=torch.float64)
    bias = -torch.stack([torch.zeros_like(bias), bias])[None]
    expected = sdpa(query, key, value, attn_mask=bias, enable_gqa=True)
    torch.testing.assert_close(output, expected)


def test_dropout_zeroes_probabilities_after_the_softmax_and_rescales_the_rest():
    query, key, _ = tensors(2, 2, 1, 4, 6)
    value = torch.eye(6, dtype=torch.float64).expand(2, 1, 6, 6)  # the output is the probabilities
    whole = attention(query, key, value)
    dropped = attention(query, key, value, dropout=0.4, seed=5)
    head = torch.arange(4)[:, None, None]
    keep = keep_mask(5, head, torch.arange(4)[:, None], torch.arange(6), 0.4).view(2, 2, 4, 6)
    torch.testing.assert_close(dropped, whole * keep / 0.6)
    assert 0 < keep.sum() < keep.numel()


def test_large_float16_scores_do_not_overflow():
    # 64 · 40 · 40 = 102,400 exceeds float16's 65,504; divided by √64 it is 12,800 and fits.
    query = torch.full((1, 1, 1, 64), 40.0, dtype=torch.float16)
    assert attention(query, query, query).eq(40).all()


T = torch.zeros


@pytest.mark.parametrize(
    ("query", "key", "value", "error", "message"),
    [
        (T(2, 3, 4), T(1, 2, 3, 4), T(1, 2, 3, 4), ValueError, "it must have 4 dimensions"),
        (T(1, 2, 3, 4), T(1, 2, 3, 4), T(1, 2, 5, 4), ValueError, "batch, heads and tokens must"),
        (T(2, 2, 3, 4), T(1, 2, 3, 4), T(1, 2, 3, 4), ValueError, "batch size 2 and key 1"),
        (T(1, 2, 3, 5), T(1, 2, 3, 4), T(1, 2, 3, 4), ValueError, "head_dim 5 and key 4"),
        (T(1, 2, 3, 0), T(1, 2, 3, 0), T(1, 2, 3, 4), ValueError, "equal and at least 1"),
        (T(1, 3, 3, 4), T(1, 2, 3, 4), T(1, 2, 3, 4), ValueError, "3 heads and key has 2"),
        (T(1, 2, 3, 4), T(1, 2, 3, 4).half(), T(1, 2, 3, 4), TypeError, "one floating-point type"),
        (*[T(1, 2, 3, 4).int()] * 3, TypeError, "one floating-point type"),
        (T(1, 2, 3, 4), *[T(1, 2, 3, 4, device="meta")] * 2, ValueError, "move them to one device"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(query, key, value, error, message):
    with pytest.raises(error, match=message):
        attention(query, key, value)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"window": 0}, ValueError, "window is 0: give at least 1"),
        ({"dropout": 1.0}, ValueError, "dropout is 1.0: give a probability"),
        ({"key_mask": T(1, 5)}, TypeError, "give bool, True for a real key"),
        ({"key_mask": T(1, 4).bool()}, ValueError, r"it must be \(batch, keys\), here \(1, 5\)"),
        ({"key_mask": T(1, 5, device="meta").bool()}, ValueError, "key_mask is on meta and key on"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        attention(T(1, 2, 3, 4), T(1, 2, 5, 4), T(1, 2, 5, 4), **options)
