"""The Triton kernels: in the interpreter on a CPU; the same tests and more on a GPU."""

import importlib
import math
import sys

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from course_pkg.acceleration.attention.flash_triton import (
    flash_attention_triton,
    forward_kernel,
    key_gradients_kernel,
    query_gradients_kernel,
)
from course_pkg.acceleration.attention.kernel_arguments import tile_shapes, tuning_key, worth_trying
from course_pkg.acceleration.attention.paged import PagedBatch
from course_pkg.acceleration.attention.plain import attention
from course_pkg.common.triton_runtime import INTERPRETED, triton
from tests.refusals import require_refusals
from tests.tolerance import rounding

from .examples import (
    DEVICE,
    needs_triton,
    python,
    relative_errors,
    results,
    tensors,
)

KERNELS = (forward_kernel, key_gradients_kernel, query_gradients_kernel)
BOTH = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def random(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def assert_as_exact_as_plain(inputs, dtype, causal):
    """The error of the output is at most twice plain attention's in `dtype`, of gradients 3 times.

    In float32 both only differ in the order of additions, of up to 64 keys.
    """
    inputs = [tensor.detach().to(DEVICE) for tensor in inputs]
    exact = results(attention, inputs, torch.float64, causal=causal)
    plain = relative_errors(results(attention, inputs, dtype, causal=causal), exact)
    ours = relative_errors(results(flash_attention_triton, inputs, dtype, causal=causal), exact)
    least = rounding(64) if dtype == torch.float32 else 1e-4
    bounds = [max(factor * error, least) for factor, error in zip((2, 3, 3, 3), plain, strict=True)]
    assert all(error <= bound for error, bound in zip(ours, bounds, strict=True)), (ours, bounds)


# Tiles have 16 queries and 16 keys in the interpreter.
@needs_triton
@BOTH
@pytest.mark.parametrize(
    ("shape", "head_dim"),
    [
        pytest.param((1, 1, 1, 32, 32), 16, id="whole tiles"),
        pytest.param((2, 2, 2, 37, 37), 24, id="ragged, padded head dim"),
        pytest.param((1, 6, 2, 5, 41), 8, id="fewer queries, three share a key head"),
        pytest.param((1, 2, 1, 41, 5), 16, id="fewer keys: some rows see none if causal"),
        pytest.param((1, 1, 1, 1, 33), 128, id="one query"),
        pytest.param((1, 1, 1, 17, 1), 1, id="one key, one number"),
        *(((1, 1, 1, 20, 20 + n), 16) for n in (-1, 15)),  # the diagonal crosses anywhere
    ],
)
def test_output_and_gradients_equal_plain_attention(shape, head_dim, causal):
    assert_as_exact_as_plain(tensors(*shape, head_dim), torch.float32, causal)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_16_bits_the_error_is_that_of_plain_attention_in_16_bits(dtype):
    inputs = [tensor.detach().to(dtype) for tensor in tensors(1, 2, 1, 40, 40, 32)]
    assert_as_exact_as_plain(inputs, dtype, causal=True)
    assert flash_attention_triton(*(tensor.to(DEVICE) for tensor in inputs)).dtype == dtype


@needs_triton
@pytest.mark.parametrize("shape", [(16, 64), (64, 16), (32, 32)])
def test_the_shape_of_tiles_changes_nothing(shape, monkeypatch):
    for kernel in KERNELS:
        config = triton.Config({"BLOCK_QUERIES": shape[0], "BLOCK_KEYS": shape[1]}, num_stages=1)
        monkeypatch.setattr(kernel, "configs", [config])
    assert_as_exact_as_plain(tensors(1, 2, 1, 70, 90, 16), torch.float32, causal=True)
    assert_as_exact_as_plain(tensors(1, 1, 1, 90, 70, 16), torch.float32, causal=True)


@needs_triton
@pytest.mark.parametrize("only_lse", [False, True])
def test_the_log_sum_exp_and_its_gradient_are_those_of_plain_attention(only_lse):
    inputs = [random(2, 4, 9, 16), random(2, 2, 20, 16, seed=1), random(2, 2, 20, 16, seed=2)]
    inputs = [tensor.requires_grad_() for tensor in inputs]
    ours, expected = (
        function(*inputs, scale=0.4, causal=True, return_lse=True)[only_lse:]
        for function in (flash_attention_triton, attention)
    )
    torch.testing.assert_close(ours, expected)
    weights = [random(*tensor.shape, seed=3) for tensor in ours]
    gradients = (
        torch.autograd.grad(tensor, inputs, weights, materialize_grads=True)
        for tensor in (ours, expected)
    )
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@needs_triton
def test_a_row_that_sees_no_key_has_output_0_log_sum_exp_minus_infinity_and_gradient_0():
    query = random(1, 1, 5, 16).requires_grad_()
    key = random(1, 1, 2, 16).requires_grad_()
    output, lse = flash_attention_triton(query, key, key, causal=True, return_lse=True)
    output.sum().backward()
    assert not output[0, 0, :3].any() and not query.grad[0, 0, :3].any()
    assert output[0, 0, 3:].all() and all(tensor.grad.isfinite().all() for tensor in (query, key))
    assert lse[0, 0, :3].tolist() == [-math.inf] * 3 and lse[0, 0, 3:].isfinite().all()


@needs_triton
@pytest.mark.parametrize("sizes", [(1, 0, 3), (1, 3, 0), (0, 3, 4)])
def test_without_queries_keys_or_sequences_output_and_gradients_are_0(sizes):
    batch, queries, keys = sizes
    query, key = (random(batch, 2, n, 16).requires_grad_() for n in (queries, keys))
    output = flash_attention_triton(query, key, key)
    output.sum().backward()
    assert output.shape == query.shape and not output.any()
    assert not query.grad.any() and not key.grad.any()


@needs_triton
def test_large_scores_and_shifted_values_lose_nothing_but_what_plain_attention_loses():
    query, key, value = (tensor.detach() for tensor in tensors(1, 1, 1, 20, 40, 16))
    assert_as_exact_as_plain([10 * query, key, value + 100], torch.float32, causal=True)


@needs_triton
def test_any_layout_in_memory_is_read_where_it_is_and_the_output_has_the_layout_of_the_query():
    query = random(2, 20, 3, 16)
    key = random(2, 3, 16, 20, seed=1)
    query = query.transpose(1, 2).requires_grad_()  # (batch, tokens, heads, head_dim) in memory
    key = key.transpose(2, 3).requires_grad_()  # the numbers of a row are 20 apart
    output = flash_attention_triton(query, key, key, causal=True)
    assert output.stride() == query.stride()
    expected = attention(query, key, key, causal=True)
    torch.testing.assert_close(output, expected)
    for gradient in (torch.ones((), device=DEVICE), random(3, 16, 20, 2).permute(3, 0, 2, 1)):
        ours, right = (
            torch.autograd.grad(tensor, (query, key), gradient.expand_as(tensor), retain_graph=True)
            for tensor in (output, expected)
        )
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5)


@needs_triton
def test_only_the_inputs_the_output_and_one_number_a_row_are_saved():
    query = random(1, 4, 48, 16).requires_grad_()
    key = random(1, 2, 64, 16)
    saved = flash_attention_triton(query, key, key).grad_fn.saved_tensors
    shapes = [(1, 4, 48, 16), (1, 2, 64, 16), (1, 2, 64, 16), (1, 4, 48, 16), (1, 4, 48)]
    assert sorted(tuple(tensor.shape) for tensor in saved) == sorted(shapes)


@needs_triton
def test_gradients_have_the_same_bits_in_each_run():
    inputs = [tensor.detach().to(DEVICE) for tensor in tensors(1, 2, 1, 33, 40, 16)]
    first, second = (
        results(flash_attention_triton, inputs, torch.float32, causal=True) for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# ---------------------------------------------------------------- arguments and platforms

QUERY = torch.zeros(1, 1, 2, 8)


def test_arguments_that_the_kernels_do_not_take_are_refused():
    require_refusals(
        (QUERY.double(), QUERY.double(), None, "TypeError: .*type torch.float64: the kern"),
        (*[torch.zeros(1, 1, 2, 160)] * 2, None, "ValueError: head_dim is 160: .* at most 128"),
        (QUERY, QUERY[..., :4], None, "ValueError: value has head_dim 4"),
        (QUERY, QUERY, 0.0, "ValueError: scale is 0.0: .* above 0"),
        (QUERY, QUERY, math.nan, "ValueError: scale is nan"),
        of=lambda query, value, scale: flash_attention_triton(query, query, value, scale=scale),
        errors=(TypeError, ValueError),
    )


def test_tensors_on_the_cpu_are_refused_if_the_kernels_are_compiled(monkeypatch):
    monkeypatch.setattr("course_pkg.common.triton_runtime.INTERPRETED", False)
    with pytest.raises(ValueError, match=r"query is on cpu.*start Python with TRITON_INTERPRET=1"):
        flash_attention_triton(QUERY, QUERY, QUERY)


def test_without_triton_the_modules_can_be_imported_and_calling_says_what_is_missing(monkeypatch):
    full = [
        "course_pkg.common.triton_runtime",
        "course_pkg.acceleration.attention.flash_triton",
        "course_pkg.acceleration.attention.kernel_arguments",
        "course_pkg.acceleration.attention.paged_triton",
        "course_pkg.acceleration.quantization.w4a16_triton",
    ]
    modules = [importlib.import_module(name) for name in full]
    for name, module in zip(full, modules, strict=True):
        package, _, last = name.rpartition(".")
        monkeypatch.setattr(sys.modules[package], last, module)  # restores it afterwards
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    runtime, flash, _, paged, _ = map(importlib.import_module, full)
    assert not runtime.INSTALLED
    cache = QUERY, QUERY
    assert isinstance(paged.paged_batch(cache, [[0]], [2], [0, 1]), PagedBatch)
    monkeypatch.setattr(runtime, "INTERPRETED", True)
    with pytest.raises(ImportError, match="triton is not installed: it exists for Linux"):
        flash.flash_attention_triton(QUERY, QUERY, QUERY)
    with pytest.raises(ImportError, match="the modules without kernels compute the same"):
        flash.forward_kernel[1,](QUERY)


@needs_triton
def test_the_autotuner_has_several_tiles_on_a_gpu_and_one_in_the_interpreter(monkeypatch):
    shapes = (64, 32, 4, 2), (128, 64, 8, 3)
    monkeypatch.setattr("course_pkg.acceleration.attention.kernel_arguments.INTERPRETED", False)
    small, large = tile_shapes(*shapes)
    assert small.kwargs == {"BLOCK_QUERIES": 64, "BLOCK_KEYS": 32}
    assert (large.num_warps, large.num_stages) == (8, 3)
    monkeypatch.setattr("course_pkg.acceleration.attention.kernel_arguments.INTERPRETED", True)
    [only] = tile_shapes(*shapes)
    assert only.kwargs == {"BLOCK_QUERIES": 16, "BLOCK_KEYS": 16}


@pytest.mark.parametrize(
    ("tokens", "dtype", "tried"),
    [(4096, torch.float32, [0]), (512, torch.float16, [1]), (513, torch.bfloat16, [1, 2, 3])],
)
def test_only_long_sequences_in_16_bits_are_tuned(tokens, dtype, tried):
    key = tuning_key(tokens, torch.empty(0, dtype=dtype))
    assert worth_trying([0, 1, 2, 3], {"tuning": key}) == tried


@needs_triton
@pytest.mark.skipif(not INTERPRETED, reason="compiled for the GPU here")
def test_the_interpreter_works_after_another_library_has_imported_triton():
    script = """
import os, triton
del os.environ["TRITON_INTERPRET"]
import torch
from course_pkg.acceleration.attention.flash_triton import flash_attention_triton
query = torch.zeros(1, 1, 2, 4)
value = torch.arange(8.0).view(1, 1, 2, 4).requires_grad_()
output = flash_attention_triton(query, query, value, causal=True)
output.sum().backward()
print(*output.flatten().tolist())
print(*value.grad.flatten().tolist())
"""
    assert python("-c", script, TRITON_INTERPRET="0") == [
        "0.0 1.0 2.0 3.0 2.0 3.0 4.0 5.0",
        "1.5 1.5 1.5 1.5 0.5 0.5 0.5 0.5",
    ]


@needs_triton
@pytest.mark.slow
def test_the_kernels_compile_for_a100_and_h100_with_tensor_cores(tmp_path):
    environment = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    assert set(python("-m", "tests.acceleration.attention.compile_kernels", **environment)) == {
        "forward_kernel 90 wgmma", "key_gradients_kernel 90 wgmma",
        "query_gradients_kernel 90 wgmma", "row_sums_kernel 90",
        "forward_kernel 80 mma", "key_gradients_kernel 80 mma",
        "query_gradients_kernel 80 mma", "row_sums_kernel 80",
        "paged_kernel 90 wgmma", "paged_kernel 80 mma", "merge_kernel 90", "merge_kernel 80",
        "w4a16_kernel 90 wgmma", "w4a16_kernel 80 mma",
    }  # fmt: skip


# ---------------------------------------------------------------- on a GPU


def bfloat16_inputs(batch, heads, kv_heads, tokens, head_dim):
    return [
        random(batch, count, tokens, head_dim, seed=seed, dtype=torch.bfloat16).requires_grad_()
        for seed, count in enumerate((heads, kv_heads, kv_heads))
    ]


@needs_triton
@pytest.mark.gpu
@pytest.mark.parametrize(("head_dim", "causal"), [(64, True), (128, False)])
def test_output_and_gradients_are_as_exact_as_those_of_torchs_flash_backend(head_dim, causal):
    inputs = bfloat16_inputs(2, 8, 8, 1536, head_dim)
    exact = results(attention, inputs, torch.float64, causal=causal)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        theirs = results(scaled_dot_product_attention, inputs, torch.bfloat16, is_causal=causal)
    ours = results(flash_attention_triton, inputs, torch.bfloat16, causal=causal)
    pairs = zip(relative_errors(ours, exact), relative_errors(theirs, exact), strict=True)
    assert all(our <= 1.5 * their for our, their in pairs)


@needs_triton
@pytest.mark.gpu
def test_the_document_s_listing_equals_flash_attn():
    flash_attn = pytest.importorskip("flash_attn", reason="flash-attn is not installed")
    query, key, value = (random(32, 128, 8, 64, seed=s, dtype=torch.float16) for s in range(3))
    expected = flash_attn.flash_attn_func(query, key, value, softmax_scale=1 / math.sqrt(64))
    output = flash_attention_triton(*(tensor.transpose(1, 2) for tensor in (query, key, value)))
    assert output.transpose(1, 2).shape == (32, 128, 8, 64)
    torch.testing.assert_close(output.transpose(1, 2), expected, rtol=1e-3, atol=1e-3)


@needs_triton
@pytest.mark.gpu
def test_32_thousand_tokens_need_no_matrix_of_scores():
    inputs = bfloat16_inputs(1, 4, 4, 32768, 64)  # one matrix of scores would be 2 GiB
    one = inputs[0].numel() * 2  # bytes
    gradient = torch.ones_like(inputs[0])
    for _ in range(2):  # the first run compiles
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        output = flash_attention_triton(*inputs, causal=True)
        after_forward = torch.cuda.max_memory_allocated() - before
        torch.autograd.grad(output, inputs, gradient)
        after_backward = torch.cuda.max_memory_allocated() - before
        del output
    assert after_forward < 1.2 * one  # the output, and one float32 for 64 bfloat16
    assert after_backward < 4.5 * one  # and three gradients
