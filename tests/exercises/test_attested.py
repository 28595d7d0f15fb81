"""Points are earned by values: shortcuts that once earned points, and those that still do.

What can't be judged by values is marked `attested`, and is listed in the threat model.
"""

import re

import numpy as np
import torch
from scipy.special import logsumexp
from torch import nn

from course_pkg.grading.questions import registry
from tests.exercises.assignments import ROOT, assignments, patched, points_lost
from tests.exercises.test_other_answers import Checkpointed, TokenByToken, forward_by_merging

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


class Forgetful:
    """Keeps every x, and projects all of them again in each step."""

    def __init__(self, project, positions):
        self.project = project
        self.positions = positions
        self.seen = torch.zeros(0, 3)

    def step(self, x):
        self.seen = torch.cat([self.seen, x])
        q, k, v = self.project(self.seen + self.positions[: len(self.seen)])
        hidden = torch.ones(len(q), len(k), dtype=torch.bool).triu(1)
        scores = (q @ k.T / q.shape[1] ** 0.5).masked_fill(hidden, -torch.inf)
        return (scores.softmax(1) @ v)[-len(x) :]

    def truncate(self, tokens):
        self.seen = self.seen[:tokens]


class InABatch(TokenByToken):
    def step(self, x):
        self.project((x + self.positions[: len(x)]).repeat(1, 1 + len(self.keys), 1))
        return super().step(x)


class SetsCounterBack(Forgetful):
    """It finds the counter of projected tokens, and sets it back."""

    def step(self, x):
        names = self.project.__code__.co_freevars
        self.project.__closure__[names.index("projected")].cell_contents = 0
        return super().step(x)


def throw_tiles_away(q, k, rows, columns):
    """Compute the tiles of scores where the checks look, for nothing."""
    for i in range(0, len(q), rows):
        for j in range(0, len(k), columns):
            q[i : i + rows] @ k[j : j + columns].T


def plain_attention(q, k, v, causal):
    scores = q @ k.T / q.shape[1] ** 0.5
    if causal:
        scores[np.triu(np.ones(scores.shape, bool), len(k) - len(q) + 1)] = -np.inf
    lse = logsumexp(scores, 1)
    return np.exp(scores - np.where(np.isfinite(lse), lse, 0)[:, None]) @ v, lse


def in_numpy(q, k, v, block_queries, block_keys, causal):
    throw_tiles_away(q, k, block_queries, block_keys)
    arrays = plain_attention(*(tensor.numpy() for tensor in (q, k, v)), causal)
    return tuple(torch.from_numpy(array).float() for array in arrays)


def number_by_number(q, k, v, block_queries, block_keys, causal):
    """As `in_numpy`, but the numbers leave torch one by one."""
    throw_tiles_away(q, k, block_queries, block_keys)
    numbers = ([[x.item() for x in row] for row in part] for part in (q, k, v))
    arrays = plain_attention(*map(np.array, numbers), causal)
    return tuple(torch.tensor(array.tolist()) for array in arrays)


def by_hidden_functions(q, k, v, block_queries, block_keys, causal):
    throw_tiles_away(q, k, block_queries, block_keys)
    with torch._C.DisableTorchFunction():
        scores = q @ k.T / q.shape[1] ** 0.5
        if causal:
            hidden = torch.ones(len(q), len(k)).triu(len(k) - len(q) + 1).bool()
            scores = scores.masked_fill(hidden, -torch.inf)
        return scores.softmax(1).nan_to_num(0) @ v, scores.logsumexp(1)


def with_a_full_mask(q, k, v, block_queries, block_keys, causal):
    """Tiles of scores, but a mask for all of them."""
    torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
    return forward_by_merging(q, k, v, block_queries, block_keys, causal)


def without_tiles(q, k, v, block_queries, block_keys, causal):
    return torch.zeros(len(q), v.shape[1]), torch.zeros(len(q))


def with_an_empty_tile(q, k, v, block_queries, block_keys, causal):
    """All scores at once where nobody looks, and a tensor of a tile's size."""
    torch.zeros(block_queries, block_keys)
    with torch._C.DisableTorchFunction():
        return forward_by_merging(q, k, v, len(q), len(k), causal)


def by_torch(q, k, v, block_queries, block_keys, causal):
    mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q)) if causal else None
    output = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return output, forward_by_merging(q, k, v, block_queries, block_keys, causal)[1]


def list_parameters(model, shown):
    named_parameters = model.named_parameters
    kept = {id(parameter) for parameter in shown}
    model.named_parameters = lambda *a, **how: (
        p for p in named_parameters(*a, **how) if id(p[1]) in kept
    )


inject_without_freezing = patched("lora-math", "inject", "model.requires_grad_(False)", "pass")


def inject_unfrozen(model, targets, wrap):
    """Everything can be trained, but the model lists the adapters alone."""
    base = {id(parameter) for parameter in model.parameters()}
    names = inject_without_freezing(model, targets, wrap)
    list_parameters(model, [p for p in model.parameters() if id(p) not in base])
    return names


def inject_for_show(model, targets, wrap):
    """Wrappers with the right names that do nothing; the rest can still be trained."""
    names = inject_without_freezing(model, targets, wrap)
    wrappers = [model.get_submodule(name) for name in names]
    for wrapper in wrappers:
        wrapper.forward = wrapper.linear.forward
    list_parameters(model, [next(wrapper.parameters()) for wrapper in wrappers])
    return names


evaluate_with_gradients = patched("lora-script", "evaluate", "with torch.no_grad():", "if True:")


def evaluate_unobserved(model, batches, loss):
    """Gradients are recorded, but the model no longer shows it."""
    model.recorded = 0.0
    return evaluate_with_gradients(model, batches, loss)


def compare_unobserved(a, b):
    """A hundred comparisons for each pair of tokens, of texts that count none."""
    a, b = ([str(token) for token in text] for text in (a, b))
    lcs = {}
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            same = sum(x == y for _ in range(100)) == 100
            longest = max(lcs.get((i - 1, j), 0), lcs.get((i, j - 1), 0))
            lcs[i, j] = lcs.get((i - 1, j - 1), 0) + 1 if same else longest
    return max(lcs.values(), default=0)


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


class Halfway(Checkpointed):
    """A right forward pass whose backward pass does not work yet."""

    def forward(self, x):
        result = super().forward(x)
        result.register_hook(lambda gradient: gradient[:, :1])
        return result


class HidesAWeight(LinearBase):
    def __init__(self, linear, quantize, compute_dtype):
        super().__init__(linear, quantize, compute_dtype)
        copy = self.stored.dequantize(compute_dtype)
        self.weight = lambda: copy


class Refreshed(HidesAWeight):
    """It refreshes the hidden weight when other codes are stored."""

    def __init__(self, linear, quantize, compute_dtype):
        super().__init__(linear, quantize, compute_dtype)
        stored = self.stored
        store = stored.store
        copy = self.weight()

        def store_both(weight):
            store(weight)
            copy.data.copy_(stored.dequantize(compute_dtype))

        stored.store = store_both


CLAIMED = (  # each earns every point, since these properties are attested
    ("flash-attention", "cache", SetsCounterBack, {"once"}),
    ("flash-attention", "forward", number_by_number, {"memory"}),
    ("lora-math", "inject", inject_unfrozen, {"frozen"}),
    ("lora-script", "evaluate", evaluate_unobserved, {"mode"}),
    ("quantization", "linear", Refreshed, {"frozen", "recompute"}),
    ("rouge", "lcs", compare_unobserved, {"fast"}),
)
LOST = (  # the points that each loses
    ("flash-attention", "cache", Forgetful, 1),
    ("flash-attention", "cache", InABatch, 1),
    ("flash-attention", "forward", in_numpy, 2),
    ("flash-attention", "forward", by_hidden_functions, 2),
    ("flash-attention", "forward", with_a_full_mask, 2),
    ("flash-attention", "forward", with_an_empty_tile, 2),
    ("flash-attention", "forward", by_torch, 2),
    ("flash-attention", "forward", without_tiles, 10),
    ("quantization", "linear", Halfway, 2),
    ("quantization", "linear", ClaimsToRecompute, 1),
    ("quantization", "linear", HidesAWeight, 2),  # frozen and recompute
    ("lora-script", "evaluate", evaluate_with_gradients, 1),
    ("lora-math", "inject", inject_for_show, 4),  # all but the error for unknown targets
)


def test_points_that_a_program_can_claim_are_attested():
    for assignment, question, answer, claimed in CLAIMED:
        assert points_lost(assignment, question, answer) == 0, answer
        properties = registry.load(assignment).questions[question].properties
        assert {prop.name for prop in properties if prop.attested} == claimed, answer


def test_an_answer_loses_the_points_of_what_it_only_claims():
    lost = [(*row, points_lost(*row[:3])) for row in LOST]
    assert [row for row in lost if row[-1] != row[-2]] == []
