"""Tiled attention equals the plain one in every respect; its error is that of the plain one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.acceleration.attention.flash import flash_attention
from course_pkg.acceleration.attention.plain import attention

from .examples import relative_errors, results, tensors
from .test_plain_and_flash import in_place, transposed


def alibi(scores, head, query, key):
    return scores - 0.5 / (head + 1) * (query - key).abs()


def soft_cap(scores, head, query, key):
    return 2 * (scores / 2).tanh()


def documents(scores, head, query, key):
    """Sees only keys of its own document of 3 tokens; hides whole rows if there are none."""
    return scores.masked_fill(query // 3 != key // 3, -torch.inf)


SCORE_MODS = (alibi, soft_cap, documents, transposed, in_place)


@st.composite
def cases(draw):
    """Shapes, options and block sizes, with empty sides and rows that see nothing."""
    batch, kv_heads, group = (draw(st.integers(1, 2)) for _ in range(3))
    queries = draw(st.integers(0, 20))
    keys = draw(st.integers(0, 20))
    sizes = batch, kv_heads * group, kv_heads, queries, keys, draw(st.integers(1, 9))
    inputs = tensors(*sizes, value_dim=draw(st.integers(1, 9)), seed=draw(st.integers(0, 99)))
    key_mask = None
    if draw(st.booleans()):
        share = draw(st.sampled_from([0.0, 0.5, 0.9]))
        key_mask = torch.rand(batch, keys, generator=torch.Generator().manual_seed(1)) < share
    options = {
        "causal": draw(st.booleans()),
        "window": draw(st.none() | st.integers(1, 25)),
        "key_mask": key_mask,
        "scale": draw(st.sampled_from([None, 1.0, -0.3])),
        "score_mod": draw(st.sampled_from([None, *SCORE_MODS])),
        "dropout": draw(st.sampled_from([0.0, 0.4])),
        "seed": draw(st.integers(0, 2**64 - 1)),
    }
    blocks = {"block_queries": draw(st.integers(1, 24)), "block_keys": draw(st.integers(1, 24))}
    return inputs, options, blocks


@given(cases())
@settings(max_examples=120)
def test_output_lse_and_gradients_equal_the_plain_ones(case):
    inputs, options, blocks = case
    plain = attention(*inputs, **options, return_lse=True)
    tiled = flash_attention(*inputs, **options, **blocks, return_lse=True)
    torch.testing.assert_close(tiled, plain, rtol=1e-10, atol=1e-12)
    finite = plain[1].isfinite()
    grads = torch.rand_like(plain[0]), torch.where(finite, torch.rand_like(plain[1]), 0)
    expected = torch.autograd.grad(plain, inputs, grads)
    gradients = torch.autograd.grad(tiled, inputs, grads)
    torch.testing.assert_close(gradients, expected, rtol=1e-8, atol=1e-10)
    assert all(grad.isfinite().all() for grad in gradients)


SIZES = (97, 1023, True), (1023, 97, False), (513, 513, True), (513, 1025, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("factor", "shift", "queries", "keys", "causal"),
    [
        *((factor, shift, *size) for factor, shift in ((1, 0), (1, 10), (5, 0)) for size in SIZES),
        (1, 0, 1, 97, True),
        (1, 10, 1, 97, True),
    ],
)
def test_the_error_of_outputs_is_at_most_twice_and_of_gradients_three_times_the_plain_one(
    dtype, factor, shift, queries, keys, causal
):
    query, key, value = tensors(1, 1, 1, queries, keys, head_dim=64)
    inputs = [x.to(dtype).double() for x in (query * factor, key * factor + shift, value)]
    exact = results(attention, inputs, torch.float64, causal=causal)
    plain = results(attention, inputs, dtype, causal=causal)
    tiled = results(
        flash_attention, inputs, dtype, causal=causal, block_queries=128, block_keys=128
    )
    errors = zip(relative_errors(plain, exact), relative_errors(tiled, exact), strict=True)
    # One row in float32 has few errors but that of the saved log-sum-exp, rounded to 24 bits.
    single = queries == 1 and dtype == torch.float32
    lse = attention(*inputs, return_lse=True)[1].abs().max().item() if single else 0.0
    for limit, (one, other) in zip((2, 3, 3, 3), errors, strict=True):
        assert other <= limit * one + lse * 2**-24


def test_only_the_inputs_the_output_and_one_number_for_each_row_are_saved():
    saved = []

    def pack(tensor):
        saved.append(tuple(tensor.shape))
        return tensor

    inputs = tensors(2, 4, 2, 30, 40, head_dim=8, value_dim=6)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        flash_attention(*inputs, score_mod=alibi, block_queries=8, block_keys=8)
    assert saved == [(2, 4, 30, 8), (2, 2, 40, 8), (2, 2, 40, 6), (2, 4, 30, 6), (2, 4, 30)]


def test_a_non_contiguous_input_and_an_expanded_gradient_work():
    inputs = [tensor.detach().transpose(1, 2).requires_grad_() for tensor in tensors(1, 6, 6, 4, 4)]
    tiled = flash_attention(*inputs, block_queries=2, block_keys=4)
    plain = attention(*inputs)
    torch.testing.assert_close(tiled, plain)
    torch.testing.assert_close(
        torch.autograd.grad(tiled.sum(), inputs), torch.autograd.grad(plain.sum(), inputs)
    )


def test_scores_whose_exponentials_overflow_give_finite_results():
    query = torch.full((1, 1, 3, 4), 100.0, requires_grad=True)
    output, lse = flash_attention(query, query, query, block_keys=2, return_lse=True)
    # Each score is 4 · 100 · 100 / 2 = 20,000; exp(20,000) is not a float32.
    assert output.eq(100).all() and lse.allclose(20_000 + torch.tensor(3.0).log())
    output.sum().backward()
    assert query.grad.isfinite().all()


def test_a_score_mod_with_a_trainable_tensor_is_refused_only_if_gradients_are_recorded():
    slope = torch.ones(4, 1, 1, requires_grad=True)

    def alibi(scores, head, query, key):
        return scores - slope * (query - key)

    inputs = tensors(1, 4, 4, 3, 3)
    with pytest.raises(ValueError, match="score_mod uses a tensor that requires a gradient"):
        flash_attention(*inputs, score_mod=alibi)
    with torch.no_grad():
        expected = attention(*inputs, score_mod=alibi)
        torch.testing.assert_close(flash_attention(*inputs, score_mod=alibi), expected)


def test_a_score_mod_that_ignores_the_scores_gives_gradient_0_to_query_and_key():
    inputs = tensors(1, 2, 2, 3, 4)
    flash_attention(*inputs, score_mod=lambda s, *_: torch.zeros_like(s)).sum().backward()
    assert inputs[0].grad.eq(0).all() and inputs[1].grad.eq(0).all()
    torch.testing.assert_close(inputs[2].grad, torch.full_like(inputs[2], 3 / 4))  # 3 means of 4


@pytest.mark.parametrize("sizes", [{"block_queries": 0}, {"block_keys": -1}])
def test_a_block_without_rows_is_refused(sizes):
    with pytest.raises(ValueError, match="must be an integer of at least 1, got"):
        flash_attention(*tensors(1, 2, 2, 3, 4), **sizes)


def test_a_second_derivative_is_refused():
    inputs = tensors(1, 1, 1, 3, 3)
    with pytest.raises(RuntimeError, match="can't be differentiated twice"):
        torch.autograd.grad(flash_attention(*inputs).sum(), inputs, create_graph=True)


def test_under_autocast_the_tiles_keep_their_precision():
    inputs = [tensor.detach().bfloat16().requires_grad_() for tensor in tensors(1, 2, 2, 9, 9)]
    expected = flash_attention(*inputs, causal=True)
    grads = torch.autograd.grad(expected.sum(), inputs)
    with torch.autocast("cpu", torch.bfloat16):
        output = flash_attention(*inputs, causal=True)
        assert torch.equal(output, expected)
        assert all(map(torch.equal, torch.autograd.grad(output.sum(), inputs), grads))


@pytest.mark.gpu
def test_a_gpu_gives_what_the_cpu_gives():
    key_mask = torch.arange(70) < torch.tensor([[70], [50]])
    options = {"causal": True, "window": 30, "score_mod": soft_cap, "dropout": 0.2, "seed": 9}
    inputs = [tensor.detach().float() for tensor in tensors(2, 4, 2, 60, 70, head_dim=16)]
    grad = torch.rand(2, 4, 60, 16)
    for function in (attention, flash_attention):
        results = []
        for device in ("cpu", "cuda"):
            local = [tensor.to(device).requires_grad_() for tensor in inputs]
            output = function(*local, key_mask=key_mask.to(device), **options)
            gradients = torch.autograd.grad(output, local, grad.to(device))
            results.append([tensor.detach().cpu() for tensor in (output, *gradients)])
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
