"""FlashAttention-2 on a GPU: Triton kernels behind functions that autograd can differentiate.

`flash_triton_forward` and `flash_triton_backward` hold the kernels, `triton_runtime` how they run
on a machine without a GPU (in Triton's interpreter, for learning and testing). Causal attention,
grouped queries and packed batches; no window, dropout or score hook: see `flash`.
Chapter: acceleration/flash-attention.
"""

from itertools import pairwise

import torch

from .arguments import check_tensors
from .flash_triton_backward import backward
from .flash_triton_forward import forward
from .triton_runtime import INSTALLED, INTERPRETED, MISSING

TYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_HEAD_DIM = 128


def flash_attention_triton(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """softmax(scale · query · keyᵀ) · value: (batch, heads, queries, head_dim).

    query: (batch, heads, queries, head_dim); key, value: (batch, kv_heads, keys, head_dim), in
    float16, bfloat16 or float32, with head_dim up to 128. Query head h uses key head
    h // (heads // kv_heads). scale: above 0; head_dim ** −0.5 by default. causal: query i sees key
    j only if j ≤ i + keys − queries. A query that sees no key has output 0 and gradient 0.

    Scores and sums are float32; probabilities are rounded to the type of the inputs before they
    multiply the values. For the backward pass it keeps the inputs, the output and one float32 for
    each query and head. The first call on a GPU with new sizes compiles and times several tiles.
    Raises ImportError without triton, ValueError or TypeError for arguments that don't fit.
    Source: Dao (2023), FlashAttention-2. Chapter: acceleration/flash-attention.

    >>> query = torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    >>> flash_attention_triton(query, query, query)
    Traceback (most recent call last):
      ...
    TypeError: query, key and value have type torch.float64: the kernels take float16, ...
    """
    check_tensors(query, key, value)
    _check(query, value, scale)
    longest = query.shape[2], key.shape[2]
    return _differentiable(query, key, value, (None, None), longest, scale, causal)


def flash_attention_packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_starts: torch.Tensor,
    key_starts: torch.Tensor,
    *,
    max_queries: int | None = None,
    max_keys: int | None = None,
    scale: float | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """Attention inside each of several sequences that are packed into one tensor without padding.

    query: (tokens, heads, head_dim); key, value: (tokens, kv_heads, head_dim). Sequence s has the
    queries query_starts[s] … query_starts[s + 1] − 1, and its keys likewise: int32, (sequences +
    1,), from 0 to the number of tokens, on the device of query. max_queries, max_keys: the greatest
    lengths of a sequence, or more. Without them the starts are checked and read, for which the CPU
    waits until the GPU is done. Output: (tokens, heads, head_dim). Otherwise as in
    `flash_attention_triton`, and the same as flash-attn's flash_attn_varlen_func.
    Chapter: acceleration/flash-attention.

    >>> query, starts = torch.zeros(3, 1, 4), torch.tensor([0, 2, 9], dtype=torch.int32)
    >>> flash_attention_packed(query, query, query, starts, starts)
    Traceback (most recent call last):
      ...
    ValueError: query_starts is [0, 2, 9]: it must go from 0 to 3, the number of tokens, ...
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 3:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}: packed tensors have 3 dimensions, "
                "(tokens, heads, head_dim)"
            )
    check_tensors(*(tensor.transpose(0, 1)[None] for tensor in (query, key, value)))
    _check(query, value, scale)
    _check_starts(query_starts, key_starts, query.device)
    if max_queries is None or max_keys is None:
        longest = _longest("query", query_starts, query), _longest("key", key_starts, key)
    else:
        longest = max_queries, max_keys
    return _differentiable(query, key, value, (query_starts, key_starts), longest, scale, causal)


class _FlashAttention(torch.autograd.Function):
    """The kernels as one differentiable operation; it saves the log-sum-exp, and no scores."""

    @staticmethod
    def forward(ctx, query, key, value, starts, longest, scale, causal):
        query, key, value = (_with_adjacent_numbers(each) for each in (query, key, value))
        output, lse = forward(query, key, value, starts, longest, scale, causal)
        ctx.save_for_backward(query, key, value, output, lse, *starts)
        ctx.options = longest, scale, causal
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        *saved, query_starts, key_starts = ctx.saved_tensors
        grad_output, starts = _with_adjacent_numbers(grad_output), (query_starts, key_starts)
        return *backward(*saved, grad_output, starts, *ctx.options), None, None, None, None


def _differentiable(query, key, value, starts, longest, scale, causal) -> torch.Tensor:
    if not INSTALLED:
        raise ImportError(MISSING)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    inputs = query, key, value
    if INTERPRETED and query.dtype == torch.bfloat16:
        # The interpreter of triton 3.7 multiplies the bits of bfloat16 as if they were integers.
        inputs = (each.float() for each in inputs)
    with torch.cuda.device_of(query):  # kernels start on the current GPU, or on none
        output = _FlashAttention.apply(*inputs, starts, longest, scale, causal)
    return output.to(query.dtype)


def _with_adjacent_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, copied if the numbers of a row are not next to each other in memory."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _check(query: torch.Tensor, value: torch.Tensor, scale: float | None) -> None:
    """Raise unless the kernels can run on these tensors, which are known to fit together."""
    if value.shape[-1] != query.shape[-1]:
        raise ValueError(
            f"value has head_dim {value.shape[-1]} and query {query.shape[-1]}: the kernels take "
            "equal ones; use course_pkg.attention.flash"
        )
    if scale is not None and not scale > 0:
        raise ValueError(f"scale is {scale}: the kernels take only a scale above 0")
    check_kernel_input(query, "query, key and value", "course_pkg.attention.flash")


def check_kernel_input(query: torch.Tensor, names: str, instead: str) -> None:
    """Raise unless the kernels take the type, head_dim and device of `query`.

    names: what the message calls the tensors; instead: what computes the same.
    Raises TypeError or ValueError. Chapter: acceleration/flash-attention.

    >>> check_kernel_input(torch.zeros(1, 1, 2, 160), "query", "course_pkg.attention.flash")
    Traceback (most recent call last):
      ...
    ValueError: head_dim is 160: the kernels take at most 128, ...
    """
    if query.dtype not in TYPES:
        raise TypeError(
            f"{names} have type {query.dtype}: the kernels take float16, bfloat16 or float32; "
            f"convert them, or use {instead}"
        )
    if query.shape[-1] > LARGEST_HEAD_DIM:
        raise ValueError(
            f"head_dim is {query.shape[-1]}: the kernels take at most {LARGEST_HEAD_DIM}, because "
            f"larger tiles don't fit into registers; use {instead}"
        )
    if not INTERPRETED and not query.is_cuda:
        raise ValueError(
            f"query is on {query.device}, and the kernels were compiled for the GPU: move the "
            "tensors there, or start Python with TRITON_INTERPRET=1"
        )


def _check_starts(
    query_starts: torch.Tensor, key_starts: torch.Tensor, device: torch.device
) -> None:
    """Raise unless both are int32, with one number more than there are sequences."""
    for name, starts in (("query_starts", query_starts), ("key_starts", key_starts)):
        if starts.dtype != torch.int32 or starts.dim() != 1 or starts.device != device:
            raise ValueError(
                f"{name} is {starts.dtype}, {tuple(starts.shape)}, on {starts.device}: give int32, "
                f"(sequences + 1,), on {device}"
            )
    if len(query_starts) != len(key_starts) or len(query_starts) < 2:
        raise ValueError(
            f"query_starts has {len(query_starts)} numbers and key_starts {len(key_starts)}: "
            "give both one number more than there are sequences, at least 2"
        )


def _longest(name: str, starts: torch.Tensor, tensor: torch.Tensor) -> int:
    """The greatest length of a sequence; raise unless the starts go from 0 to the last token."""
    values, tokens = starts.tolist(), tensor.shape[0]
    lengths = [end - start for start, end in pairwise(values)]
    if values[0] != 0 or values[-1] != tokens or min(lengths) < 0:
        raise ValueError(
            f"{name}_starts is {values}: it must go from 0 to {tokens}, the number of tokens, "
            "and never down"
        )
    return max(lengths)
