"""Inputs that several tests share, and the error of a computation against float64."""

import torch


def tensors(batch, heads, kv_heads, queries, keys, head_dim=8, value_dim=None, seed=0):
    """Query, key and value in float64, which require gradients."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (batch, heads, queries, head_dim),
        (batch, kv_heads, keys, head_dim),
        (batch, kv_heads, keys, value_dim or head_dim),
    )
    return [
        torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes
    ]


def results(function, inputs, dtype, **options):
    """The output and the gradients of query, key and value, in float64, computed in `dtype`."""
    inputs = [each.detach().to(dtype).requires_grad_() for each in inputs]
    output = function(*inputs, **options)
    generator = torch.Generator().manual_seed(7)
    grad = torch.randn(output.shape, generator=generator).bfloat16()  # exact in every type
    gradients = torch.autograd.grad(output, inputs, grad.to(output))
    return [each.detach().double() for each in (output, *gradients)]
