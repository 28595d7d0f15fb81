"""FlashAttention-2 on a GPU: Triton kernels behind a function that autograd can differentiate.

`flash_triton_forward` and `flash_triton_backward` hold the kernels,
`course_pkg.common.triton_runtime` how they run on a machine without a GPU (in Triton's
interpreter, for learning and testing). Causal attention and grouped queries; no window, padding,
dropout or score_mod: see `flash`.
Chapter: acceleration/flash-attention.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from course_pkg.acceleration.attention.flash_triton_backward import (
    key_gradients_kernel,
    query_gradients_kernel,
    row_sums_kernel,
)
from course_pkg.acceleration.attention.flash_triton_forward import forward_kernel
from course_pkg.acceleration.attention.kernel_arguments import (
    check_kernel_input,
    head_dims,
    rows,
    tuning_key,
)
from course_pkg.acceleration.attention.validation import check_attention
from course_pkg.common.triton_runtime import computed, triton, with_adjacent_numbers


def flash_attention_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The output of `plain.attention`, by the kernels: (batch, heads, queries, head_dim).

    The arguments are those of `plain.attention`; the tensors are float16, bfloat16 or float32, with
    head_dim up to 128, also that of the values; scale is above 0.

    Scores and sums are float32; probabilities are rounded to the type of the inputs before they
    multiply the values. The first call on a GPU with new sizes compiles and times several tiles.
    Raises ImportError without triton, ValueError or TypeError for arguments that don't fit.
    Source: Dao (2023), FlashAttention-2.

    >>> query = torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    >>> flash_attention_triton(query, query, query)
    Traceback (most recent call last):
      ...
    TypeError: query, key and value have type torch.float64: the kernels take float16, ...
    """
    check_attention(query, key, value)
    if value.shape[-1] != query.shape[-1]:
        raise ValueError(
            f"value has head_dim {value.shape[-1]} and query {query.shape[-1]}: the kernels take "
            "equal ones; use course_pkg.acceleration.attention.flash"
        )
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if not scale > 0:
        raise ValueError(f"scale is {scale}: the kernels take only a scale above 0")
    check_kernel_input(query, "query, key and value", "course_pkg.acceleration.attention.flash")
    inputs = map(computed, (query, key, value))
    with torch.cuda.device_of(query):  # kernels start on the current GPU, or on none
        output, lse = _FlashAttention.apply(*inputs, scale, causal)
    output = output.to(query.dtype)
    return (output, lse) if return_lse else output


class _FlashAttention(torch.autograd.Function):
    """The kernels as one differentiable operation; it saves the log-sum-exp, and no scores."""

    @staticmethod
    def forward(ctx, query, key, value, scale, causal):
        query, key, value = map(with_adjacent_numbers, (query, key, value))
        batch, heads, queries, head_dim = query.shape
        _, kv_heads, keys, _ = key.shape
        output = torch.empty_like(query)
        lse = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.set_materialize_grads(False)
        ctx.sizes = queries, keys, heads // kv_heads, scale, tuning_key(max(queries, keys), query)
        ctx.constants = head_dims(head_dim) | {"CAUSAL": causal}

        if query.numel() > 0:  # a grid may not be empty
            tensors = map(rows, (query, key, value, output, lse))
            grid = _grid(queries, "BLOCK_QUERIES", heads, batch)
            forward_kernel[grid](*tensors, *ctx.sizes, **ctx.constants)
        return output, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, grad_lse):
        query, key, value, output, lse = ctx.saved_tensors
        batch, heads, queries, head_dim = query.shape
        _, kv_heads, keys, _ = key.shape
        if grad_output is None:
            grad_output = torch.zeros_like(output)
        grad_output = with_adjacent_numbers(grad_output)
        gradients = [torch.empty_like(each) for each in (query, key, value)]
        grad_query, grad_key, grad_value = map(rows, gradients)
        row_sums = torch.empty_like(lse)
        tensors = [rows(each) for each in (query, key, value, grad_output, lse, row_sums)]

        query_grid = _grid(queries, "BLOCK_QUERIES", heads, batch)
        key_grid = _grid(keys, "BLOCK_KEYS", kv_heads, batch)
        if query.numel() > 0:
            summed = map(rows, (output, grad_output, row_sums))
            row_sums_kernel[query_grid](*summed, queries, BLOCK_QUERIES=64, **head_dims(head_dim))
            if grad_lse is not None:  # d lse / dS = P, so its gradient is subtracted from D
                row_sums -= grad_lse
            query_gradients_kernel[query_grid](*tensors, grad_query, *ctx.sizes, **ctx.constants)
        if key.numel() > 0:
            key_gradients_kernel[key_grid](
                *tensors, grad_key, grad_value, *ctx.sizes, **ctx.constants
            )
        return *gradients, None, None


def _grid(tokens: int, block: str, heads: int, batch: int) -> Callable[[dict], tuple]:
    """A program for each block of tokens, head and sequence; `block` names a block's size."""
    return lambda config: (triton.cdiv(tokens, config[block]), heads, batch)
