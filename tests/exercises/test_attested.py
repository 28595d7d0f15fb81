"""Points are earned by values: shortcuts that once earned points, and those that still do.

What can't be judged by values is marked `attested`, is listed in the threat model, and is capped.
"""

import re

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch import nn

from course_pkg.grading.check import check
from course_pkg.grading.checks.quantization.student import Stored
from course_pkg.grading.contract import registry

from .assignments import ROOT, assignments, points_lost

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


@pytest.mark.parametrize("name", assignments())
def test_attested_properties_have_at_most_a_tenth_of_the_points(name):
    questions = registry.load(name).questions.values()
    attested = sum(p.points for q in questions for p in q.properties if p.attested)
    assert 10 * attested <= sum(question.points for question in questions)


# -- what still earns points without the work


class SetsCounterBack(nn.Module):
    """Keeps every x and no keys; it finds the counter of projected tokens, and sets it back."""

    def __init__(self, project, positions):
        super().__init__()
        self.project, self.positions, self.seen = project, positions, torch.zeros(0, 3)

    def step(self, x):
        names = self.project.__code__.co_freevars
        self.project.__closure__[names.index("projected")].cell_contents = 0
        self.seen = torch.cat([self.seen, x])
        q, k, v = self.project(self.seen + self.positions[: len(self.seen)])
        hidden = torch.ones(len(q), len(k), dtype=torch.bool).triu(1)
        scores = (q @ k.T / q.shape[1] ** 0.5).masked_fill(hidden, -torch.inf)
        return (scores.softmax(1) @ v)[-len(x) :]

    def truncate(self, tokens):
        self.seen = self.seen[:tokens]


def number_by_number(q, k, v, block_queries, block_keys, causal):
    """Plain attention on Python's numbers, and tiles that are thrown away."""
    queries, keys, values = ([[x.item() for x in row] for row in part] for part in (q, k, v))
    scores = np.array(queries) @ np.array(keys).T / q.shape[1] ** 0.5
    if causal:
        scores[np.triu(np.ones(scores.shape, bool), len(k) - len(q) + 1)] = -np.inf
    lse = logsumexp(scores, 1)
    weights = np.exp(scores - np.where(np.isfinite(lse), lse, 0)[:, None])
    for i in range(0, len(q), block_queries):
        for j in range(0, len(k), block_keys):
            q[i : i + block_queries] @ k[j : j + block_keys].T
    return torch.tensor((weights @ np.array(values)).tolist()), torch.tensor(lse.tolist())


def inject_unfrozen(model, targets, wrap):
    """Everything can be trained, but the model lists the adapters alone."""
    base = {id(parameter) for parameter in model.parameters()}
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    names = [name for name in linears if name.split(".")[-1] in targets]
    if not names:
        raise ValueError
    for name in names:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, wrap(model.get_submodule(name)))
    found = model.named_parameters
    model.named_parameters = lambda *a, **how: (
        pair for pair in found(*a, **how) if id(pair[1]) not in base
    )
    return names


def evaluate_unobserved(model, batches, loss):
    """Gradients are recorded, but the model no longer shows it."""
    model.recorded = 0.0
    return evaluate_with_gradients(model, batches, loss)


def compare_unobserved(a, b):
    """A hundred comparisons for each pair of tokens, of texts that count none."""
    a, b = [str(token) for token in a], [str(token) for token in b]
    lcs = {}
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            same = sum(x == y for _ in range(100)) == 100
            longest = max(lcs.get((i - 1, j), 0), lcs.get((i, j - 1), 0))
            lcs[i, j] = lcs.get((i - 1, j - 1), 0) + 1 if same else longest
    return max(lcs.values(), default=0)


class Refreshed(nn.Module):
    """Computes with a hidden weight, which it refreshes when other codes are stored."""

    def __init__(self, linear, quantize, compute_dtype):
        super().__init__()
        self.stored, self.bias, self.dtype = quantize(linear.weight), linear.bias, compute_dtype
        stored, copy = self.stored, self.stored.dequantize(compute_dtype)
        store, self.weight = stored.store, lambda: copy

        def store_both(weight):
            store(weight)
            copy.data.copy_(stored.dequantize(compute_dtype))

        stored.store = store_both

    def forward(self, x):
        result = x.to(self.dtype) @ self.weight().T
        return (result if self.bias is None else result + self.bias.to(self.dtype)).to(x.dtype)


@pytest.mark.parametrize(
    ("assignment", "question", "answer", "claimed"),
    [
        ("flash-attention", "cache", SetsCounterBack, {"once"}),
        ("flash-attention", "forward", number_by_number, {"memory"}),
        ("lora-math", "inject", inject_unfrozen, {"frozen"}),
        ("lora-script", "evaluate", evaluate_unobserved, {"mode"}),
        ("quantization", "linear", Refreshed, {"frozen", "recompute"}),
        ("rouge", "lcs", compare_unobserved, {"fast"}),
    ],
)
def test_points_that_a_program_can_claim_are_attested(assignment, question, answer, claimed):
    assert points_lost(assignment, question, answer) == 0
    properties = registry.load(assignment).questions[question].properties
    assert {prop.name for prop in properties if prop.attested} == claimed


# -- what earns nothing any longer


class Forgetful:
    """Keeps every x, and projects all of them again in each step."""

    def __init__(self, project, positions):
        self.project, self.positions, self.seen = project, positions, torch.zeros(0, 3)

    def step(self, x):
        self.seen = torch.cat([self.seen, x])
        q, k, v = self.project(self.seen + self.positions[: len(self.seen)])
        hidden = torch.ones(len(q), len(k), dtype=torch.bool).triu(1)
        scores = (q @ k.T / q.shape[1] ** 0.5).masked_fill(hidden, -torch.inf)
        return (scores.softmax(1) @ v)[-len(x) :]

    def truncate(self, tokens):
        self.seen = self.seen[:tokens]


def test_tokens_that_are_projected_again_give_other_outputs():
    assert points_lost("flash-attention", "cache", Forgetful) == 1


class LinearBase(nn.Module):
    """A layer that lets autograd keep the weight."""

    def __init__(self, linear, quantize, compute_dtype):
        super().__init__()
        self.stored, self.bias, self.dtype = quantize(linear.weight), linear.bias, compute_dtype

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


def test_a_weight_that_is_dequantized_for_show_in_the_backward_pass_earns_nothing():
    assert points_lost("quantization", "linear", ClaimsToRecompute) == 1


def test_a_hidden_copy_of_the_weight_does_not_follow_the_codes():
    assert points_lost("quantization", "linear", HidesAWeight) == 2  # frozen and recompute


def test_a_patched_counter_is_no_help(monkeypatch):
    monkeypatch.setattr(Stored, "count", 10**6, raising=False)
    assert points_lost("quantization", "linear", LinearBase) == 1


def evaluate_with_gradients(model, batches, loss):
    """Right numbers, with gradients recorded, and a flag that says that they were not."""
    model.eval()
    total, tokens, right, rows = 0.0, 0, 0, 0
    for batch in batches:
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        model.gradients = False
        nll, count = loss(logits, batch["labels"])
        targets = batch["labels"][:, 1:]
        hits = (logits[:, :-1].argmax(-1) == targets) | (targets == -100)
        total, tokens = total + nll.item(), tokens + int(count)
        right, rows = right + int(hits.all(1).sum()), rows + len(hits)
    return total / tokens, right / rows


def test_recorded_gradients_show_in_the_loss_whatever_the_model_says():
    assert points_lost("lora-script", "evaluate", evaluate_with_gradients) == 1


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
    scores = q.numpy() @ k.numpy().T / q.shape[1] ** 0.5
    if causal:
        scores[torch.ones(len(q), len(k)).triu(len(k) - len(q) + 1).bool().numpy()] = -torch.inf
    return throw_tiles_away(q, k, v, scores, logsumexp(scores, 1), block_queries, block_keys)


def throw_tiles_away(q, k, v, scores, lse, rows, columns):
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
