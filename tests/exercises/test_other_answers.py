"""Right answers that are not the model answer keep every point, in every assignment.

This guards the checks: that they are not too strict for other types, precision, errors and orders.
An answer that gives exactly what the model answer gives would guard nothing here.
"""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from scipy.special import rel_entr
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.exercises.assignments import model_answers, points_lost

ANSWERS: dict[str, list[tuple[str, Any]]] = {}


def right(assignment, question):
    """Registers a function or class as a right answer to a question."""

    def register(answer):
        ANSWERS.setdefault(assignment, []).append((question, answer))
        return answer

    return register


@right("lora-math", "forward")
def forward_with_modules(x, weight, bias, lora_A, lora_B, alpha):
    """Layers from torch.nn: the output has a gradient, and double precision."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return layer(x).double() + alpha / len(lora_A) * (x @ lora_A.T @ lora_B.T)


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


@right("peft-methods", "prefix")
def prefix_by_sdpa(q, k, v, prefix_k, prefix_v):
    """torch's attention with a mask, and grouped heads."""
    n = prefix_k.shape[1]
    mask = torch.arange(n + q.shape[1]) <= torch.arange(q.shape[1])[:, None] + n
    keys, values = (torch.cat(pair, 1)[None] for pair in ((prefix_k, k), (prefix_v, v)))
    attention = F.scaled_dot_product_attention
    return attention(q[None], keys, values, mask, enable_gqa=True)[0]


@right("peft-methods", "dora")
def dora_as_peft_computes_it(x, weight, bias, lora_A, lora_B, magnitude, alpha):
    """The base's product is used again, and the adapter's is added to it."""
    scaling = alpha / lora_A.shape[0]
    with torch.no_grad():
        norm = torch.linalg.norm(weight + scaling * lora_B @ lora_A, dim=1)
    g = magnitude / norm
    base = F.linear(x, weight)
    return base + bias + (g - 1) * base + g * scaling * (x @ lora_A.T @ lora_B.T)


@right("peft-methods", "merge")
def merge_row_by_row(weight, lora_A, lora_B, magnitude, alpha):
    """A loop over the rows, in double precision."""
    rows = weight.double() + alpha / len(lora_A) * (lora_B.double() @ lora_A.double())
    return torch.stack(
        [row * m / row.norm() if row.any() else row for row, m in zip(rows, magnitude, strict=True)]
    )


@right("peft-methods", "ia3")
def ia3_with_diagonals(weight, bias, vector, feedforward):
    """Products with diagonal matrices."""
    diagonal = torch.diag(vector)
    if feedforward:
        return [weight @ diagonal, bias]
    return [diagonal @ weight, bias if bias is None else diagonal @ bias]


@right("quantization", "levels")
def normal_float_in_numpy(bits, offset):
    """Probabilities in double precision, and an array of numpy."""
    count = 2 ** (bits - 1)
    normal = torch.distributions.Normal(torch.tensor(0.0).double(), 1)
    grids = [torch.linspace(0.5, offset, n + 1).double()[1:] for n in (count - 1, count)]
    low, high = (normal.icdf(grid) / normal.icdf(torch.tensor(offset).double()) for grid in grids)
    return torch.cat([-low.flip(0), torch.zeros(1).double(), high]).numpy()


@right("quantization", "quantize")
def quantize_padded(x, levels, block_size):
    """No loop: a padded matrix of blocks, and midpoints that are searched."""
    padded = F.pad(x.flatten(), (0, -x.numel() % block_size)).view(-1, block_size)
    absmax = padded.abs().amax(1)
    scaled = padded / absmax.clamp(min=1e-30)[:, None]
    codes = torch.searchsorted((levels[1:] + levels[:-1]) / 2, scaled).flatten()
    return codes[: x.numel()], absmax


@right("quantization", "dequantize")
def dequantize_by_bytes(packed, absmax, levels, block_size, shape):
    """Division by 16 in place of bit operations, in Python."""
    codes = [code for byte in packed.tolist() for code in divmod(byte, 16)]
    numbers = [
        levels[c] * absmax[min(i // block_size, len(absmax) - 1)] for i, c in enumerate(codes)
    ]
    return torch.stack(numbers)[: torch.zeros(shape).numel()].view(shape)


@right("quantization", "linear")
class Checkpointed(nn.Module):
    """Activation checkpointing in place of a Function."""

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


@right("quantized-inference", "affine")
def affine_in_torch(low, high, bits):
    """Tensors of one number, in double precision; steps counted down from the largest code."""
    ends = torch.tensor([low, high, 0.0]).double()
    scale = (ends.max() - ends.min()) / (2**bits - 1)
    return scale, (2 ** (bits - 1) - 1 - ends.max() / scale).round()


@right("quantized-inference", "quantize")
def quantize_by_minimum(x, scale, zero, bits):
    """Codes in int64, token by token, with minima and maxima."""
    half = torch.tensor(2.0 ** (bits - 1))
    tokens = zip(x.double(), scale.tolist(), zero.tolist(), strict=True)
    codes = [(token / s[0] + z[0]).round() for token, s, z in tokens]
    return torch.stack(codes).minimum(half - 1).maximum(-half).long()


@right("quantized-inference", "product")
def product_of_differences(a, a_scale, a_zero, w, w_scale):
    """The zero points first, and everything in double precision."""
    total = (a.double() - a_zero) @ w.double().T
    return total, torch.einsum("ij,i,j->ij", total, a_scale.flatten(), w_scale.flatten())


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


@right("quantized-inference", "smooth")
def smooth_in_double(x, weights, alpha):
    """Logarithms in double precision; maxima weight by weight."""
    w_max = torch.stack([weight.abs().max(0).values for weight in weights]).max(0).values.double()
    x_max = x.abs().max(0).values.double()
    exponent = alpha * x_max.log() - (1 - alpha) * w_max.log()
    f = torch.where(torch.isfinite(exponent), exponent.exp(), 1.0)
    return [f, x @ torch.diag(1 / f).float(), tuple(weight * f for weight in weights)]


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


@right("parallelism", "ring")
def ring_of_messages(tensors):
    """Chunks as lists of tensors, messages collected before they are delivered; numpy's sums."""
    n = len(tensors)
    held = [list(tensor.double().tensor_split(n)) for tensor in tensors]
    sent = torch.zeros(n, dtype=torch.int64)
    states = []
    for half in ("reduce", "gather"):
        for step in range(n - 1):
            numbers = [(r - step - (half == "reduce")) % n for r in range(n)]
            messages = [held[r][numbers[r]].clone() for r in range(n)]
            for r, message in enumerate(messages):
                sent[r] += len(message) * tensors[0].element_size()
                old = held[(r + 1) % n][numbers[r]] if half == "reduce" else 0
                held[(r + 1) % n][numbers[r]] = message + old
            states.append(tuple(torch.cat(chunks) for chunks in held))
    return states, sent.tolist()


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


@right("parallelism", "cross-entropy")
def cross_entropy_by_one_hot(logits, labels, first, all_reduce):
    """Products with a one-hot matrix, in double precision; the maximum is reduced in place."""
    z = logits.double()
    largest = z.max(dim=1).values
    all_reduce(largest, "max")
    total = all_reduce((z - largest[:, None]).exp().sum(1))
    is_label = (torch.arange(first, first + z.shape[1]) == labels[:, None]).double()
    label_logit = all_reduce((z * is_label).sum(1), operation="sum")
    weight = labels.ge(0).double()
    weight /= max(weight.sum().item(), 1)
    softmax = (z - largest[:, None] - total.log()[:, None]).exp()
    loss = weight @ (largest - label_logit + total.log())
    return [loss.item(), (softmax - is_label) * weight[:, None]]


@right("parallelism", "zero-bytes")
def zero_bytes_by_rank(parameters, ranks, stage, sizes):
    """The shard of every rank; a float."""
    shards = [len(shard) for shard in torch.empty(parameters).tensor_split(ranks)]
    weight, gradient, optimizer = sizes
    total = optimizer * (max(shards) if stage > 0 else parameters)
    total += gradient * (max(shards) if stage > 1 else parameters)
    return float(total + weight * (max(shards) if stage > 2 else parameters))


@right("parallelism", "schedule")
def one_f_one_b_by_room(rank, ranks, microbatches):
    """Forward while fewer than p - r are in flight, and then backward."""
    actions = []
    forwards = backwards = 0
    while backwards < microbatches:
        if forwards < microbatches and forwards - backwards < ranks - rank:
            actions.append(["F", forwards])
            forwards += 1
        else:
            actions.append(["B", backwards])
            backwards += 1
    return tuple(actions)


@right("compression", "distillation")
def distillation_by_autograd(student, teacher, labels, alpha, temperature):
    """torch's own losses, in double precision, differentiated."""
    z = student.double().requires_grad_()
    counted = labels >= 0
    if not counted.any():
        return 0, torch.zeros_like(student)
    own = z[counted]
    target = teacher.double()[counted]
    loss = (1 - alpha) * temperature**2 * F.kl_div(
        F.log_softmax(own / temperature, -1),
        F.softmax(target / temperature, -1),
        reduction="batchmean",
    ) + alpha * F.cross_entropy(own, labels[counted])
    return [loss, torch.autograd.grad(loss, z)[0]]


@right("compression", "jsd")
def jsd_in_torch(teacher, student, beta):
    """Tensors, with xlogy for 0 log 0; the entropy of the mixture less the mean entropy."""
    t, s = torch.tensor([teacher, student], dtype=torch.float64)
    if beta in (0, 1):
        first, second = (t, s) if beta == 0 else (s, t)
        return (torch.xlogy(first, first) - torch.xlogy(first, second)).sum()
    m = beta * t + (1 - beta) * s
    return sum(sign * torch.xlogy(p, p).sum() for sign, p in ((beta, t), (1 - beta, s), (-1, m)))


@right("compression", "choose")
def choose_with_scipy(teacher, students):
    """Arrays, and scipy's terms of a relative entropy."""
    forward = rel_entr(teacher, students)
    reverse = rel_entr(students, teacher)
    return [terms.sum(1).argmin() for terms in (forward, reverse)]


@right("compression", "wanda")
def wanda_of_all_tokens(weight, batches):
    """One matrix of all tokens, in double precision."""
    norms = torch.linalg.vector_norm(torch.cat(batches).double(), dim=0)
    return (weight.double() * norms).abs()


@right("compression", "mask")
def mask_group_by_group(scores, n, m):
    """Python's stable sort, in each group; 0 and 1 in int64."""
    mask = torch.zeros(scores.shape, dtype=torch.int64)
    for i, values in enumerate(scores.tolist()):
        for start in range(0, len(values), m):
            group = sorted(range(start, start + m), key=lambda j, row=values: -row[j])
            mask[i, group[:n]] = 1
    return mask


@right("compression", "bytes")
def bytes_by_bits(rows, columns, value_bytes, n, m):
    """All sizes in bits; floats."""
    values = 8 * value_bytes * n * columns / m
    index = len(bin(m - 1)) - 2
    extras = (index * n * columns / m, columns)
    return [rows * (values + 8 * math.ceil(extra / 8)) / 8 for extra in extras]


@right("multiple-choice", "log-probs")
def log_probs_by_cross_entropy(logits, ids, context_length):
    """torch's loss, in double precision; a numpy array."""
    predictions = logits[context_length - 1 : len(ids) - 1].double()
    return -F.cross_entropy(predictions, ids[context_length:], reduction="none").numpy()


@right("multiple-choice", "scores")
def scores_as_tensors(options, log_probs, unconditional, normalization):
    """Tensors in float32, and numpy's argmax."""
    sums = torch.tensor([math.fsum(each) for each in log_probs])
    lengths = {
        "sum": [1 for _ in options],
        "token": list(map(len, log_probs)),
        "character": list(map(len, options)),
        "byte": [len(bytes(option, "utf-8")) for option in options],
    }
    if normalization == "pmi":
        scores = sums - torch.tensor(unconditional)
    else:
        scores = sums / torch.tensor(lengths[normalization])
    return scores, scores.numpy().argmax()


@right("multiple-choice", "boundary")
def scored_tokens_by_characters(encode, context, options):
    """Where tokens end in the text, instead of a comparison with the context's own tokens."""
    if min(len(option.strip()) for option in options) == 0:
        raise ValueError(options)
    end = len(context.rstrip(" "))
    starts = []
    lengths = []
    for option in options:
        tokens = encode(context + option)
        places = [len("".join(tokens[:i])) for i in range(1, len(tokens) + 1)]
        starts.append(sum(place <= end for place in places))
        lengths.append(len(tokens))
    return [min(starts), torch.tensor(lengths) - min(starts)]


@right("multiple-choice", "single")
def single_answers_in_torch(log_probs, answers):
    """Padded with -inf; float32."""
    longest = max(map(len, log_probs))
    rows = [values + [-math.inf] * (longest - len(values)) for values in log_probs]
    sums = torch.tensor(rows)
    right = torch.tensor(answers)
    preferred = sums.argmax(1) == right
    single = sums.gather(1, right[:, None]) > math.log(0.5)
    listed = sums.exp().sum(1)
    confidence = sums.softmax(1).amax(1)
    return torch.stack([x.float().mean() for x in (preferred, single, listed, confidence)])


@right("multiple-choice", "calibration")
def calibration_with_searchsorted(confidences, correct, bins, binning):
    """Edges that are searched, as in the course's own code, and means of bins; float32."""
    values = torch.tensor(confidences)
    right = torch.tensor(correct).float()
    if binning == "width":
        place = torch.searchsorted(torch.arange(1, bins) / bins, values)
    else:
        place = torch.searchsorted(values.sort().values, values) * bins // len(values)
    inside = [place == number for number in place.unique()]
    gaps = [(right[i].mean() - values[i].mean()).abs() * i.float().mean() for i in inside]
    return torch.stack(gaps).sum().item()


@right("multiple-choice", "paired")
def paired_by_matrix(baseline, system, groups):
    """A matrix that says which items are related."""
    x = torch.tensor(system, dtype=torch.float64) - torch.tensor(baseline, dtype=torch.float64)
    related = torch.tensor([[a == b for a in groups] for b in groups]).double()
    count = len(set(groups))
    centered = x - x.mean()
    variance = count / (count - 1) * (centered @ related @ centered)
    return x.mean().item(), (variance.sqrt() / len(x)).item()


@right("multiple-choice", "pass-at-k")
def pass_at_k_by_logarithms(samples, correct, k):
    """Logarithms of the gamma function, as for numbers that floats can't hold."""

    def log_choose(n):
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    total = 0.0
    for n, c in zip(samples, correct, strict=True):
        if n < k:
            raise ValueError(n)
        total += 1 if n - c < k else -math.expm1(log_choose(n - c) - log_choose(n))
    return total / len(samples)


@right("constrained", "masks")
def masks_in_a_table(transitions, accepting, tokens, end):
    """A table of 257 columns and one row more for the dead state; tuples, the end token first."""
    table = torch.full((len(transitions) + 1, 256), -1)
    for state, leads in enumerate(transitions):
        table[state, list(leads)] = torch.tensor(list(leads.values()), dtype=torch.int64)
    masks = []
    for state in range(len(transitions)):
        mask = [end] if state in accepting else []
        for token, text in enumerate(tokens):
            at = state
            for byte in text:
                at = int(table[at, byte])
            if at >= 0 and len(text) and token != end:
                mask.append(token)
        masks.append(tuple(mask))
    return masks


@right("constrained", "json")
def json_of_classes(schema):
    """Escapes one by one, groups that don't capture, digits in classes, and an error by lookup."""
    match schema:
        case {"enum": texts, **rest} if not rest:
            escaped = ["".join(map(in_json, text)) for text in texts]
            return '"(?:' + "|".join(escaped) + ')"'
        case {"type": "boolean", **rest} if not rest:
            return "(?:tru|fals)e"
        case {"type": "null", **rest} if not rest:
            return "nul{2}"
        case {"type": "integer", "minimum": low, "maximum": high, **rest} if not rest:
            return (
                "(?:"
                + "|".join(
                    f"-?{n}" if -n in range(low, n) else f"{n}" for n in range(low, high + 1)
                )
                + ")"
            )
        case {"type": "object", "properties": inner, "required": _, **rest} if not rest:
            members = [
                f'"{"".join(map(in_json, k))}":{json_of_classes(v)}' for k, v in inner.items()
            ]
            return "[{]" + ",".join(members) + "[}]"
    raise ValueError(schema)


def in_json(character):
    """A character in a JSON string, as an expression."""
    written = {'"': '\\"', "\\": "\\\\", "\n": "\\n"}.get(character, character)
    return "".join(sign if sign.isalnum() else f"\\{sign}" for sign in written)


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
    """A cache that projects each token as a vector."""

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
    """A block at a time, in lists of its own."""
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


@right("paged-attention", "free")
def free_with_a_guard(pool, name):
    """An error of its own, and blocks that are collected first."""
    if name not in pool.tables:
        raise KeyError(f"{name} has no blocks")
    for block in pool.tables[name]:
        pool.users[block] -= 1
    pool.free += [block for block in pool.tables[name][::-1] if not pool.users[block]]
    del pool.tables[name], pool.tokens[name]


@right("paged-attention", "copy-on-write")
def copy_by_positions(pool, name, start, stop):
    """Every position, after a count; the pairs are lists in a tuple."""
    table = pool.tables[name]
    pairs = []
    written = sorted({position // pool.block_size for position in range(start, stop)})
    if sum(pool.users[table[index]] > 1 for index in written) > len(pool.free):
        return None
    for index in written:
        if pool.users[table[index]] > 1:
            pairs.append([table[index], pool.free.pop(0)])
            pool.users[table[index]] -= 1
            table[index] = pairs[-1][1]
            pool.users[table[index]] += 1
    return tuple(pairs)


@right("paged-attention", "write")
def write_by_slots(cache, new, table, start):
    """All tokens at once."""
    size = cache.shape[2]
    t = torch.arange(start, start + len(new))
    cache[torch.tensor(table)[t // size], :, t % size] = new


@right("paged-attention", "attention")
def attention_by_tokens(q, key_cache, value_cache, table, length):
    """One head and one token at a time, in double precision."""
    size = key_cache.shape[2]
    group = len(q) // key_cache.shape[1]
    rows = []
    slots = [(table[t // size], t % size) for t in range(length)]
    for head, query in enumerate(q.double()):
        keys, values = (
            torch.stack([cache[block, head // group, offset] for block, offset in slots]).double()
            for cache in (key_cache, value_cache)
        )
        rows.append((keys @ query / math.sqrt(len(query))).softmax(0) @ values)
    return torch.stack(rows).float()


@right("scheduling", "step")
def schedule_with_zeros(running, waiting, free_blocks, block_size, token_budget, places):
    """Every sequence has an entry, and the preempted ones are a tuple."""
    arguments = running, waiting, free_blocks, block_size, token_budget, places
    scheduled, preempted = model_answers("scheduling")["schedule"](*arguments)
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


@right("lora-script", "encode")
def encode_whole_conversation(messages, answer, tokenizer):
    """Two renderings of the template, as tensors."""
    whole = tokenizer.apply_chat_template(
        [*messages, {"role": "assistant", "content": answer}], tokenize=False
    )
    before = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = torch.tensor(tokenizer(whole[: -len("\n")], add_special_tokens=False).input_ids)
    labels = ids.clone()
    labels[: len(tokenizer(before, add_special_tokens=False).input_ids)] = -100
    return ids, labels


@right("lora-script", "collate")
def collate_with_pad_sequence(rows, pad_token_id):
    pad = torch.nn.utils.rnn.pad_sequence
    ids, labels = zip(*((torch.tensor(i), torch.tensor(y)) for i, y in rows), strict=True)
    return {
        "input_ids": pad(list(ids), True, pad_token_id),
        "attention_mask": pad([torch.ones_like(i).bool() for i in ids], True).int(),
        "labels": pad(list(labels), True, -100),
    }


@right("lora-script", "loss")
def loss_by_gather(logits, labels):
    real = labels[:, 1:] != -100
    costs = -logits[:, :-1].double().log_softmax(-1)
    costs = costs.gather(-1, labels[:, 1:].clamp(min=0)[..., None])[..., 0]
    return (costs * real).sum(), int(real.sum())


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


@right("benchmarks", "program")
def program_by_one_expression(text, name):
    """Both fences in one regular expression; empty lines are added at the end."""
    blocks = re.findall(r"^ *```.*\n((?:(?! *```).*\n?)*)", text, re.MULTILINE)
    inner = blocks[:1] or [text]
    for block in blocks:
        if any(line.startswith((f"def {name}(", f"def {name} ")) for line in block.split("\n")):
            inner = [block]
            break
    return inner[0] + "\n\n"


@right("benchmarks", "newton")
def newton_by_least_squares(design, outcomes, coefficients):
    """Iteratively reweighted least squares, row by row, in torch; a numpy array."""
    x = torch.tensor(design, dtype=torch.float64)
    logits = x @ torch.tensor(coefficients, dtype=torch.float64)
    p = logits.sigmoid()
    weights = p * (1 - p)
    target = weights * logits + torch.tensor(outcomes, dtype=torch.float64) - p
    return torch.linalg.lstsq(x.T @ (weights[:, None] * x), x.T @ target).solution.numpy()


@right("benchmarks", "strengths")
def strengths_by_newton(matches):
    """Newton's method with one name at 0; sorted names, numpy numbers."""
    rows = [(a, b, y) for a, b, y in matches if y is not None]
    names = sorted({name for a, b, _ in rows for name in (a, b)})
    x = np.array([[(a == name) - (b == name) for name in names[1:]] for a, b, _ in rows], float)
    y = np.array([y for _, _, y in rows])
    s = np.zeros(len(names) - 1)
    for _ in range(12):
        p = 1 / (1 + np.exp(-x @ s))
        s += np.linalg.solve(x.T @ np.diag(p * (1 - p)) @ x, x.T @ (y - p))
    s = np.array([0, *s])
    return {name: value for name, value in zip(names, s - s.mean(), strict=True)}


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


@right("benchmarks", "pairs")
def pair_shares_by_the_quadratic(more, less, directions):
    """The bounds as roots of (x - p)² = z² p (1 - p) / n; an array."""
    won = np.array(more) > np.array(less)
    x = won.mean()
    n = len(won)
    side = np.array(directions)
    low, high = sorted(np.roots([1 + 1.959964**2 / n, -(2 * x + 1.959964**2 / n), x**2]).real)
    return np.array([x, low, high, won[side == 0].mean() - won[side == 1].mean()])


@right("benchmarks", "overlap")
def overlap_by_flags(item, texts, n):
    """A flag for each word, and runs as texts between spaces."""

    def plain(text):
        return re.sub(r"[^a-z0-9]+", " ", text.lower()).split()

    words = plain(item)
    pages = [f" {' '.join(plain(text))} " for text in texts]
    flags = np.zeros(len(words), bool)
    for start in range(len(words) - n + 1):
        run = f" {' '.join(words[start : start + n])} "
        if any(run in page for page in pages):
            flags[start : start + n] = True
    return round(float(flags.mean()), 6)


@right("benchmarks", "rates")
def rates_by_signs(scores, lower_is_better):
    """Signs of differences in one array."""
    table = np.array(list(scores.values())) * np.where(lower_is_better, -1, 1)
    signs = np.sign(table[:, None] - table[None])  # (models, models, tasks)
    mean = signs.sum(axis=1).mean(axis=1) / (len(table) - 1)
    return dict(zip(scores, (mean + 1) / 2, strict=True))


@pytest.mark.parametrize("assignment", ANSWERS)
def test_other_right_answers_keep_every_point(assignment):
    lost = {
        answer.__name__: points_lost(assignment, name, answer)
        for name, answer in ANSWERS[assignment]
    }
    assert lost == dict.fromkeys(lost, 0)
