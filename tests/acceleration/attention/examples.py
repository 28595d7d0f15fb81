"""Inputs that several tests share, and the error of a computation against float64."""

import os
import subprocess
import sys

import pytest
import torch

from course_pkg.common.triton_runtime import INSTALLED, INTERPRETED, MISSING

needs_triton = pytest.mark.skipif(not INSTALLED, reason=MISSING)
DEVICE = "cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda"


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
    inputs = [tensor.detach().to(dtype).requires_grad_() for tensor in inputs]
    output = function(*inputs, **options)
    generator = torch.Generator().manual_seed(7)
    grad = torch.randn(output.shape, generator=generator).bfloat16()  # exact in every type
    gradients = torch.autograd.grad(output, inputs, grad.to(output))
    return [tensor.detach().double() for tensor in (output, *gradients)]


def relative_errors(computed, exact):
    """‖found − exact‖ / ‖exact‖ of each pair of tensors, or ‖found‖ where exact is 0."""
    return [((a - b).norm() / (b.norm() or 1)).item() for a, b in zip(computed, exact, strict=True)]


def python(*arguments, **environment):
    """The lines that a new Python prints; an error shows what it wrote."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
