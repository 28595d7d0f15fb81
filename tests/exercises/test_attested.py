"""Points are earned by values: each shortcut here once earned points that a program could claim.

What can't be judged by values is marked `attested`, and is listed in the threat model.
"""

import re

import pytest
import torch
from torch import nn

from course_pkg.grading.check import check
from course_pkg.grading.contract import registry
from tests.exercises.assignments import ROOT, assignments, points_lost

THREAT_MODEL = (ROOT / "book/appendix/threat-model.md").read_text("utf-8")


def test_the_threat_model_lists_exactly_the_attested_properties_with_their_points():
    rows = re.findall(r"^ *\| `([\w-]+/[\w-]+/[\w-]+)` \| (\d+) \|", THREAT_MODEL, re.MULTILINE)
    marked = [
        (f"{name}/{question.name}/{prop.name}", str(prop.points))
        for name in assignments()
        for question in registry.load(name).questions.values()
        for prop in question.properties
        if prop.attested
    ]
    assert marked and sorted(rows) == sorted(marked)


class LinearBase(nn.Module):
    """A layer that lets autograd keep the weight."""

    def __init__(self, linear, quantize, compute_dtype):
        super().__init__()
        self.stored = quantize(linear.weight)
        self.bias = linear.bias
        self.dtype = compute_dtype

    def weight(self):
        return self.stored.dequantize(self.dtype)

    def forward(self, x):
        result = x.to(self.dtype) @ self.weight().T
        return (result if self.bias is None else result + self.bias.to(self.dtype)).to(x.dtype)


class ClaimsToRecompute(LinearBase):
    """It dequantizes in the backward pass, and throws the result away."""

    def forward(self, x):
        result = super().forward(x)
        if result.requires_grad:
            result.register_hook(self.discard)
        return result

    def discard(self, gradient):
        self.stored.dequantize(self.dtype)


class HidesAWeight(LinearBase):
    """It computes with a copy of the weight, hidden in a function."""

    def __init__(self, linear, quantize, compute_dtype):
        super().__init__(linear, quantize, compute_dtype)
        copy = self.stored.dequantize(compute_dtype)
        self.weight = lambda: copy


@pytest.mark.parametrize(("answer", "points"), [(ClaimsToRecompute, 1), (HidesAWeight, 2)])
def test_a_weight_that_is_dequantized_for_show_or_hidden_loses_its_points(answer, points):
    assert points_lost("quantization", "linear", answer) == points


def inject_for_show(model, targets, wrap):
    """Wrappers with the right names that do nothing; the rest can still be trained."""
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    names = [name for name in linears if name.split(".")[-1] in targets]
    if not names:
        raise ValueError
    for name in names:
        parent, _, child = name.rpartition(".")
        base = model.get_submodule(name)
        wrapper = wrap(base)
        wrapper.forward = base.forward
        setattr(model.get_submodule(parent), child, wrapper)
    kept = {id(p) for name in names for p in [*model.get_submodule(name).parameters()][:1]}
    found = model.named_parameters
    model.named_parameters = lambda *_, **how: ((n, p) for n, p in found(**how) if id(p) in kept)
    return names


def test_wrappers_for_show_earn_only_the_error_for_unknown_targets():
    assert points_lost("lora-math", "inject", inject_for_show) == 4


def in_numpy(q, k, v, block_queries, block_keys, causal):
    """Plain attention in NumPy, and tiles that are thrown away."""
    from scipy.special import logsumexp

    scores = q.numpy() @ k.numpy().T / q.shape[1] ** 0.5
    if causal:
        scores[torch.ones(len(q), len(k)).triu(len(k) - len(q) + 1).bool().numpy()] = -torch.inf
    return throw_tiles_away(q, k, v, scores, logsumexp(scores, 1), block_queries, block_keys)


def throw_tiles_away(q, k, v, scores, lse, rows, columns):
    import numpy as np

    for i in range(0, len(q), rows):
        for j in range(0, len(k), columns):
            q[i : i + rows] @ k[j : j + columns].T
    weights = np.exp(scores - np.where(np.isfinite(lse), lse, 0)[:, None])
    return torch.from_numpy(weights @ v.numpy()).float(), torch.from_numpy(lse).float()


def by_hidden_functions(q, k, v, block_queries, block_keys, causal):
    """Plain attention with torch functions disabled, and tiles that are thrown away."""
    for i in range(0, len(q), block_queries):
        for j in range(0, len(k), block_keys):
            q[i : i + block_queries] @ k[j : j + block_keys].T
    with torch._C.DisableTorchFunction():
        scores = q @ k.T / q.shape[1] ** 0.5
        if causal:
            hidden = torch.ones(len(q), len(k)).triu(len(k) - len(q) + 1).bool()
            scores = scores.masked_fill(hidden, -torch.inf)
        return scores.softmax(1).nan_to_num(0) @ v, scores.logsumexp(1)


@pytest.mark.parametrize("answer", [in_numpy, by_hidden_functions])
def test_plain_attention_out_of_sight_loses_the_points_for_memory(answer):
    assert points_lost("flash-attention", "forward", answer) == 2
    assert "memory" in check("flash-attention/forward", answer).report
