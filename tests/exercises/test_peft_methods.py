"""`peft-methods`: right answers that are not the model answer keep every point."""

import math

import torch
from torch import nn

from course_pkg.adapters.accounting import count_parameters
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.prefixes import cache_shape
from course_pkg.grading.check import variant
from course_pkg.grading.checks.peft_methods import cases
from tests.exercises.assignments import earning_everything


def prefix_by_sdpa(q, k, v, prefix_k, prefix_v):
    """torch's attention with a mask, and grouped heads."""
    n = prefix_k.shape[1]
    mask = torch.arange(n + q.shape[1]) <= torch.arange(q.shape[1])[:, None] + n
    keys, values = (torch.cat(pair, 1)[None] for pair in ((prefix_k, k), (prefix_v, v)))
    attention = nn.functional.scaled_dot_product_attention
    return attention(q[None], keys, values, mask, enable_gqa=True)[0]


def prefix_with_a_gate(q, k, v, prefix_k, prefix_v):
    """Two softmaxes, mixed with the share of the prefix: equation 7 of He et al. 2022."""
    k, v, pk, pv = (
        t.repeat_interleave(len(q) // len(k), 0).double() for t in (k, v, prefix_k, prefix_v)
    )
    future = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
    scores = [q.double() @ keys.mT / math.sqrt(q.shape[-1]) for keys in (pk, k)]
    scores[1] = scores[1].masked_fill(future, -torch.inf)
    prefix, text = (s.exp().sum(-1, keepdim=True) for s in scores)
    gate = prefix / (prefix + text)
    return gate * (scores[0].softmax(-1) @ pv) + (1 - gate) * (scores[1].softmax(-1) @ v)


def dora_as_peft_computes_it(x, weight, bias, lora_A, lora_B, magnitude, alpha):
    """The base's product is used again, and the adapter's is added to it."""
    scaling = alpha / lora_A.shape[0]
    with torch.no_grad():
        norm = torch.linalg.norm(weight + scaling * lora_B @ lora_A, dim=1)
    g = magnitude / norm
    base = nn.functional.linear(x, weight)
    return base + bias + (g - 1) * base + g * scaling * (x @ lora_A.T @ lora_B.T)


def merge_row_by_row(weight, lora_A, lora_B, magnitude, alpha):
    """A loop over the rows, in double precision."""
    rows = weight.double() + alpha / len(lora_A) * (lora_B.double() @ lora_A.double())
    return torch.stack(
        [row * m / row.norm() if row.any() else row for row, m in zip(rows, magnitude, strict=True)]
    )


def ia3_with_diagonals(weight, bias, vector, feedforward):
    """Products with diagonal matrices."""
    diagonal = torch.diag(vector)
    if feedforward:
        return [weight @ diagonal, bias]
    return [diagonal @ weight, bias if bias is None else diagonal @ bias]


OTHERS = {
    "prefix": [prefix_by_sdpa, prefix_with_a_gate],
    "dora": [dora_as_peft_computes_it],
    "merge": [merge_row_by_row],
    "ia3": [ia3_with_diagonals],
}
test_another_right_answer_keeps_every_point = earning_everything("peft-methods", OTHERS)


def test_the_books_counts_are_those_of_a_llama_with_these_sizes():
    from transformers import LlamaConfig

    case = variant("peft-methods/by-hand")
    config = LlamaConfig(
        num_hidden_layers=case["layers"],
        hidden_size=case["hidden"],
        num_attention_heads=case["heads"],
        num_key_value_heads=case["kv_heads"],
        intermediate_size=case["ffn"],
    )
    dora = count_parameters(config, "dora", DoRAConfig(case["rank"], target_modules=["v_proj"]))
    ia3 = count_parameters(config, "ia3", IA3Config())
    right = cases.by_hand_expected(case)
    assert right["vectors"] == [dora.trainable, ia3.trainable]
    prefix = case["virtual_tokens"] * 2 * math.prod(cache_shape(config))
    assert right["virtual"][1] == prefix


def test_the_counts_are_those_of_models_with_adapters():
    from transformers import LlamaConfig

    from course_pkg.adapters.adalora import AdaLoRAConfig
    from course_pkg.adapters.lora import LoRAConfig

    sizes = {"num_hidden_layers": 2, "hidden_size": 12, "intermediate_size": 20, "vocab_size": 16}
    config = LlamaConfig(num_attention_heads=3, num_key_value_heads=1, **sizes)
    targets = ["k_proj", "v_proj", "down_proj"]
    sizes = zip(targets, ((4, 12), (4, 12), (12, 20)), strict=True)
    shapes = {f"layers.{i}.{name}": size for name, size in sizes for i in range(2)}
    adapters = {
        "lora": LoRAConfig(4, target_modules=targets),
        "dora": DoRAConfig(4, target_modules=targets),
        "adalora": AdaLoRAConfig(10, initial_rank=4, target_rank=2, target_modules=targets),
        "ia3": IA3Config(),
    }
    for method, adapter in adapters.items():
        counted = cases.counts_expected({"method": method, "shapes": shapes, "rank": 4})
        assert counted == count_parameters(config, method, adapter).trainable, method
