"""Right answers that are not the model answer keep every point, in every assignment.

This guards the checks: that they are not too strict. Other types and precisions are tried with the
model answers; written out are answers that do something else on the way, which a check may watch.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.exercises.assignments import answers_to, points_lost

ANSWERS: dict[str, list[tuple[str, Any]]] = {}


def right(assignment, question):
    def register(answer):
        ANSWERS.setdefault(assignment, []).append((question, answer))
        return answer

    return register


@right("lora-math", "merge")
class NewParameter(nn.Module):
    """Freezes the base layer, and merges into a new parameter instead of the old one."""

    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scaling = alpha / rank
        self.original = None
        self.lora_A = nn.Parameter(torch.ones(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        update = F.linear(F.linear(x, self.lora_A), self.lora_B)
        return self.base(x) + (0 if self.original is not None else self.scaling * update)

    def merge(self):
        if self.original is None:
            self.original = self.base.weight.data
            self.base.weight.data = self.original + self.scaling * (self.lora_B @ self.lora_A).data

    def unmerge(self):
        if self.original is not None:
            self.base.weight.data = self.original
            self.original = None


@right("quantization", "linear")
class Checkpointed(nn.Module):
    reentrant = False

    def __init__(self, linear, quantize, compute_dtype):
        super().__init__()
        self.stored = quantize(linear.weight.data)
        self.dtype = compute_dtype
        self.register_buffer("bias", linear.bias)

    def product(self, x):
        bias = None if self.bias is None else self.bias.to(self.dtype)
        return F.linear(x, self.stored.dequantize(self.dtype), bias)

    def forward(self, x):
        return checkpoint(self.product, x.to(self.dtype), use_reentrant=self.reentrant).to(x)


@right("quantization", "linear")
class Reentrant(Checkpointed):
    """The older kind of checkpointing, which allows `backward()` but not `autograd.grad`."""

    reentrant = True


@right("quantized-inference", "outliers")
def outliers_by_masking(x, w, w_scale, threshold):
    """Zeros in place of the other part, outliers in 16 bits, scales without outliers."""
    is_outlier = x.abs() >= threshold
    columns = is_outlier.sum(0).bool()
    inner = x.masked_fill(is_outlier, 0)
    absmax = inner.abs().amax(1, keepdim=True)
    codes = torch.where(absmax > 0, 127 * inner / absmax, 0).round().masked_fill(columns, 0)
    outer = (x * columns).half() @ (w * w_scale).half().T
    return columns.int(), codes @ w.float().T * (absmax / 127 @ w_scale.T) + outer


@right("quantized-inference", "gptq")
def gptq_by_solving(W, U, group_size, bits):
    """Row by row in double precision; the other columns' best values from the Hessian itself."""
    hessian = torch.linalg.inv(U.double().T @ U.double())
    largest = 2 ** (bits - 1) - 1
    codes = torch.zeros_like(W)
    scales = torch.zeros(len(W), W.shape[1] // group_size)
    for i, row in enumerate(W.double()):
        for j in range(len(row)):
            if j % group_size == 0:
                scale = row[j : j + group_size].abs().max() / largest
                scales[i, j // group_size] = scale
            codes[i, j] = min(max(torch.round(row[j] / scale), -largest), largest)
            moved = codes[i, j] * scale - row[j]
            rest = hessian[j + 1 :, j + 1 :]
            row[j + 1 :] -= torch.linalg.solve(rest, hessian[j + 1 :, j]) * moved
    return codes.to(torch.int8), scales.half()


@right("parallelism", "mlp")
def mlp_with_the_bias_on_one_rank(x, gate_up, down, bias, rank, ranks, all_reduce):
    """Slices, double precision, in place; rank 0 alone adds the bias, before the sum."""
    own = slice(rank * down.shape[1] // ranks, (rank + 1) * down.shape[1] // ranks)
    gate, up = gate_up.double().view(2, down.shape[1], -1)[:, own]
    x = x.double()
    output = F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down[:, own].double())
    if rank == 0:
        output += bias
    all_reduce(output)
    return output


@right("flash-attention", "merge")
def merge_by_maximum(output_a, lse_a, output_b, lse_b):
    """The larger log-sum-exp is subtracted, and empty rows are set at the end."""
    largest = torch.maximum(lse_a, lse_b)
    a, b = (torch.nan_to_num(lse - largest, nan=-math.inf).exp() for lse in (lse_a, lse_b))
    total = a + b
    output = (a[:, None] * output_a + b[:, None] * output_b) / total.clamp(min=1)[:, None]
    return output, torch.where(total > 0, largest + total.log(), -math.inf)


@right("flash-attention", "forward")
def forward_by_merging(q, k, v, block_queries, block_keys, causal):
    """Keys outside, queries inside; the tiles are merged in double precision."""
    q, k, v = (tensor.double() for tensor in (q, k, v))
    output = torch.zeros(len(q), v.shape[1]).double()
    lse = torch.full((len(q),), -math.inf).double()
    for j in range(0, len(k), block_keys):
        for i in range(0, len(q), block_queries):
            rows = slice(i, i + block_queries)
            s = torch.einsum("id,jd->ij", q[rows], k[j : j + block_keys]) * q.shape[1] ** -0.5
            if causal:
                s += torch.full_like(s, -math.inf).triu(len(k) - len(q) + i - j + 1)
            tile = torch.softmax(s, -1).nan_to_num(0) @ v[j : j + block_keys]
            merged = merge_by_maximum(output[rows], lse[rows], tile, s.logsumexp(-1))
            output[rows], lse[rows] = merged
    return output.float(), lse.float()


@right("flash-attention", "cache")
class TokenByToken:
    def __init__(self, project, positions):
        self.project = project
        self.positions = positions
        self.keys = []
        self.values = []

    def step(self, x):
        outputs = []
        for token in x:
            q, k, v = self.project(token + self.positions[len(self.keys)])
            self.keys.append(k)
            self.values.append(v)
            weights = (torch.stack(self.keys) @ q / len(q) ** 0.5).softmax(0)
            outputs.append(weights @ torch.stack(self.values))
        return torch.stack(outputs)

    def truncate(self, tokens):
        del self.keys[tokens:], self.values[tokens:]


@right("paged-attention", "append")
def append_one_by_one(pool, name, count):
    table = list(pool.tables[name])
    tokens = pool.tokens[name]
    free = list(pool.free)
    for _ in range(count):
        if tokens == len(table) * pool.block_size:
            if not free:
                return False
            table.append(free.pop(0))
        tokens += 1
    for block in table[len(pool.tables[name]) :]:
        pool.users[block] += 1
    pool.tables[name] = table
    pool.tokens[name] = tokens
    pool.free = free
    return True


@right("scheduling", "step")
def schedule_with_zeros(running, waiting, free_blocks, block_size, token_budget, places):
    """Every sequence has an entry, and the preempted ones are a tuple."""
    arguments = running, waiting, free_blocks, block_size, token_budget, places
    scheduled, preempted = answers_to("scheduling")["step"](*arguments)
    names = [name for name, *_ in [*running, *waiting]]
    return [dict.fromkeys(names, 0) | scheduled, tuple(preempted)]


@right("perplexity", "batch")
def batch_with_labels_and_lists(model, input_ids, attention_mask):
    """Labels of −100, and a list of tensors; the mask is the second argument."""
    positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(input_ids, attention_mask, position_ids=positions).logits[:, :-1]
    real = (attention_mask[:, 1:] == 1) & (attention_mask[:, :-1] == 1)
    labels = torch.where(real, input_ids[:, 1:], -100)
    nll = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return [row.sum() for row in nll], real.sum(-1).tolist()


@right("perplexity", "corpus")
def corpus_sorted_by_length(score, tokenizer, texts, batch_size):
    """The longest texts first, and a tensor of NLLs."""
    lengths = [len(ids) for ids in tokenizer(texts).input_ids]
    order = sorted((i for i, n in enumerate(lengths) if n > 1), key=lambda i: -lengths[i])
    nlls = torch.zeros(len(texts))
    tokens = sum(lengths[i] - 1 for i in order)
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        batch = tokenizer([texts[i] for i in rows], padding=True, return_tensors="pt")
        nlls[rows] = score(**batch)[0]
    if not order:
        raise ValueError("nothing to score")
    return (nlls.sum() / tokens).exp(), nlls


@right("perplexity", "sliding")
def sliding_without_last_tokens(model, input_ids, window, stride):
    """No window's last token, which is a target only, goes through the model."""
    costs = torch.full((len(input_ids),), torch.nan)
    for start in range(0, max(1, len(input_ids) - window + stride), stride):
        part = input_ids[start : start + window]
        logits = model(part[None, :-1]).logits[0]
        new = F.cross_entropy(logits, part[1:], reduction="none").detach()
        done = int(costs.isfinite().sum())
        costs[done + 1 : start + len(part)] = new[max(done - start, 0) :]
    return costs[1:].sum(), len(costs) - 1


@right("rouge", "lcs")
def with_places(a, b):
    """The LCS from the places of each token and increasing series of them: hashes, no table."""
    places = {}
    ends = []
    for place, token in enumerate(b):
        places.setdefault(token, []).append(place)
    for token in a:
        for place in reversed(places.get(token, [])):
            before = sum(end < place for end in ends)
            ends[before : before + 1] = [place]
    return len(ends)


@right("lora-script", "lora")
def lora_with_peft(model, rank, alpha, targets):
    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets))


@right("lora-script", "step")
def step_that_counts_first(model, optimizer, batches, loss):
    """Known counts, so that each micro-batch's gradient is already a part of the mean's."""
    model.train()
    total = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
    mean = 0.0
    for batch in batches:
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        part = loss(logits, batch["labels"])[0] / total
        part.backward()
        mean += part.detach()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return mean


@right("lora-script", "evaluate")
def evaluate_row_by_row(model, batches, loss):
    model.train(False)
    parts = []
    rows = []
    with torch.inference_mode():
        for batch in batches:
            for i in range(len(batch["labels"])):
                one = {name: tensor[i : i + 1] for name, tensor in batch.items()}
                logits = model(one["input_ids"], one["attention_mask"]).logits
                parts.append(loss(logits, one["labels"]))
                labels = F.pad(one["labels"][:, 1:], (0, 1), value=-100)
                rows.append(((labels < 0) | (labels == logits.argmax(-1))).all())
    nlls, counts = zip(*parts, strict=True)
    return sum(nlls) / sum(counts), torch.stack(rows).float().mean()


@right("benchmarks", "length")
def length_controlled_in_plain_python(fit, preferences, lengths, baseline_lengths, difficulty):
    """Lists, and the columns in another order."""
    gaps = [a - b for a, b in zip(lengths, baseline_lengths, strict=True)]
    mean = sum(gaps) / len(gaps)
    d = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1))
    hard = [[] if difficulty is None else [g] for g in difficulty or gaps]
    rows = [[math.tanh(gap / d), *g, 1.0] for gap, g in zip(gaps, hard, strict=True)]
    _, *rest = fit(rows, preferences)
    logits = [sum(b * x for b, x in zip(rest, [*g, 1.0], strict=True)) for g in hard]
    return sum(0.5 + math.tanh(z / 2) / 2 for z in logits) / len(logits)


@right("constrained", "masks")
def masks_from_the_last_token(*given):
    return [mask[::-1] for mask in answers_to("constrained")["masks"](*given)]


@right("benchmarks", "program")
def program_with_empty_lines(*given):
    return answers_to("benchmarks")["program"](*given) + "\n\n"


@pytest.mark.parametrize("assignment", ANSWERS)
def test_other_right_answers_keep_every_point(assignment):
    lost = {
        answer.__name__: points_lost(assignment, name, answer)
        for name, answer in ANSWERS[assignment]
    }
    assert lost == dict.fromkeys(lost, 0)


def in_other_types(value: Any, whole: type = float) -> Any:
    """The same numbers but for rounding: in double precision, with a gradient, in other lists.

    whole: the type of whole numbers.
    """
    other = partial(in_other_types, whole=whole)
    match value:
        case torch.Tensor():
            if not value.is_floating_point():
                return value.long()
            return (value.double() * (1 + 1e-7)).requires_grad_()
        case bool():
            return value
        case int():
            return whole(value)
        case float():
            return torch.tensor(value * (1 + 1e-12), dtype=torch.float64)
        case list():
            return tuple(map(other, value))
        case tuple():
            return list(map(other, value))
        case dict():
            return {name: other(each) for name, each in value.items()}
    return value


INTEGERS = {  # questions whose whole numbers are names, of tokens or blocks, or must be integers
    "compression": {"count"},
    "constrained": {"masks", "trim"},
    "evaluation-plan": {"facts"},
    "lora-math": {"counts"},
    "paged-attention": {"copy-on-write"},
    "rouge": {"lcs", "skip-bigrams"},
    "scheduling": {"step"},
}


def test_other_types_of_the_same_numbers_keep_every_point(assignment):
    lost = {}
    for name, model in answers_to(assignment).items():
        whole = np.int64 if name in INTEGERS.get(assignment, ()) else float
        if not isinstance(model, type):

            def answer(*given, model=model, whole=whole):
                return in_other_types(model(*given), whole)

            lost[name] = points_lost(assignment, name, answer)
    assert lost == dict.fromkeys(lost, 0)
