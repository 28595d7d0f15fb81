"""One query against a cache: the parts together equal the whole."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.acceleration.attention.decode import decode_attention, merge
from course_pkg.acceleration.attention.plain import attention

from .examples import tensors


@given(st.integers(0, 40), st.integers(1, 50), st.sampled_from([(1, 1), (4, 2), (6, 1)]))
def test_any_number_of_parts_equals_the_whole(keys, splits, heads):
    inputs = tensors(2, *heads, 1, keys)
    torch.testing.assert_close(decode_attention(*inputs, splits=splits), attention(*inputs))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_error_in_half_precision_is_at_most_twice_the_plain_one(dtype):
    inputs = [tensor.detach().to(dtype) for tensor in tensors(2, 4, 2, 1, 999, head_dim=64)]
    exact = attention(*(tensor.double() for tensor in inputs))
    error = (decode_attention(*inputs, splits=7).double() - exact).norm()
    assert decode_attention(*inputs, splits=7).dtype == dtype
    assert error <= 2 * (attention(*inputs).double() - exact).norm()


def parts(count, keys_each=3, seed=0):
    query, key, value = tensors(1, 2, 2, 4, count * keys_each, seed=seed)
    cut = [slice(i * keys_each, (i + 1) * keys_each) for i in range(count)]
    pairs = [attention(query, key[:, :, c], value[:, :, c], return_lse=True) for c in cut]
    return (query, key, value), [list(column) for column in zip(*pairs, strict=True)]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_merged_parts_equal_the_whole_with_their_gradients(count):
    inputs, (outputs, lses) = parts(count)
    whole = attention(*inputs, return_lse=True)
    merged = merge(outputs, lses)
    torch.testing.assert_close(merged, whole)
    grads = [torch.rand_like(tensor) for tensor in whole]
    torch.testing.assert_close(
        torch.autograd.grad(merged, inputs, grads), torch.autograd.grad(whole, inputs, grads)
    )


def test_an_empty_part_changes_nothing_and_has_gradient_0():
    _, (outputs, lses) = parts(2)
    output = torch.zeros_like(outputs[0], requires_grad=True)
    lse = torch.full_like(lses[0], -torch.inf, requires_grad=True)
    merged = merge([output, *outputs], [lse, *lses])
    torch.testing.assert_close(merged, merge(outputs, lses))
    merged[0].sum().backward()
    assert output.grad.eq(0).all() and lse.grad.eq(0).all()


def test_parts_that_are_all_empty_give_an_empty_result():
    output = torch.zeros(1, 2, 4, 3)
    lse = torch.full((1, 2, 4), -torch.inf, requires_grad=True)
    merged, merged_lse = merge([output, output], [lse, lse])
    assert merged.eq(0).all() and merged_lse.eq(-torch.inf).all()
    (merged.sum() + merged_lse.sum()).backward()
    assert lse.grad.eq(0).all()


def test_large_log_sum_exps_do_not_overflow():
    one = torch.ones(1, 1)
    output, lse = merge([one, 3 * one], [torch.tensor([1000.0]), torch.tensor([1000.0])])
    assert output.item() == 2 and lse.item() == pytest.approx(1000 + math.log(2))


def test_what_does_not_fit_is_refused():
    query, key, value = tensors(1, 2, 2, 2, 3)
    with pytest.raises(ValueError, match="decode_attention takes 1 per sequence"):
        decode_attention(query, key, value, splits=2)
    with pytest.raises(ValueError, match="splits must be an integer of at least 1, got 0"):
        decode_attention(query[:, :, :1], key, value, splits=0)
    with pytest.raises(ValueError, match="0 outputs and 0 lses: give as many of each"):
        merge([], [])
    with pytest.raises(ValueError, match="1 outputs and 2 lses"):
        merge([query], [query[..., 0]] * 2)
    with pytest.raises(ValueError, match="all outputs must have one shape"):
        merge([query, query[:, :1]], [query[..., 0], query[:, :1, :, 0]])
