"""`lora-script`: what an adapter does on the checker's own base model.

Chapter: exercises.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from course_pkg.adapters.injection import adapter_layers, inject, remove_adapters
from course_pkg.datasets import TICKET_SYSTEM
from course_pkg.lm import smollm2
from course_pkg.lm.load import LoadedModel, load

from .adapter_files import ASKED

BATCH = 8
Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Measured:
    """Mean loss per answer token in nats, and the share of answers that are right to the end."""

    loss: float
    exact: float


def chat(prompt: str) -> list[dict[str, str]]:
    """The messages before an answer."""
    return [{"role": "system", "content": TICKET_SYSTEM}, {"role": "user", "content": prompt}]


def encode(messages: Messages, answer: str, tokenizer: Any) -> tuple[list[int], list[int]]:
    """Token ids and labels, from two renderings: with the answer, and up to where it begins."""
    render = tokenizer.apply_chat_template
    before = render(messages, tokenize=False, add_generation_prompt=True)
    whole = render([*messages, {"role": "assistant", "content": answer}], tokenize=False)
    ids = tokenizer(whole.removesuffix("\n"), add_special_tokens=False).input_ids
    start = len(tokenizer(before, add_special_tokens=False).input_ids)
    return ids, [-100] * start + ids[start:]


def read_records(text: str) -> tuple[list[tuple[str, str]], int]:
    """The first answered record of every prompt in JSON Lines, and how many are left out."""
    records = [json.loads(line) for line in text.split("\n") if line.strip()]
    first: dict[str, str] = {}
    for record in records:
        if record.get("answer", "").strip():
            first.setdefault(record["prompt"], record["answer"])
    return list(first.items()), len(records) - len(first)


@lru_cache(maxsize=1)
def base() -> LoadedModel:
    """The base model and its tokenizer, loaded once."""
    return load(smollm2.NAME)


def measure(weights: Mapping[str, Tensor] | None, records: Sequence[Sequence[str]]) -> Measured:
    """The base with an adapter, or alone, on pairs of a prompt and its answer.

    An answer is right if every token, the end included, is the most likely one after those before
    it: exactly then greedy generation gives it.
    """
    model, tokenizer = base()
    rows = [encode(chat(prompt), answer, tokenizer) for prompt, answer in records]
    try:
        if weights is not None:
            _add(model, weights)
        costs, right = [], 0
        for start in range(0, len(rows), BATCH):
            found = _batch(model, rows[start : start + BATCH])
            costs += [cost for cost, _ in found]
            right += sum(hit for _, hit in found)
    finally:
        remove_adapters(model)
    return Measured(torch.cat(costs).mean().item(), right / len(rows))


def _add(model: Any, weights: Mapping[str, Tensor]) -> None:
    inject(model, ASKED)
    with torch.no_grad():
        for name, layer in adapter_layers(model).items():
            for part in layer.parts:
                tensor = weights[f"base_model.model.{name}.{part}.weight"]
                getattr(layer, part)["default"].copy_(tensor)


@torch.no_grad()
def _batch(model: Any, rows: Sequence[tuple[list[int], list[int]]]) -> list[tuple[Tensor, bool]]:
    """For each row the costs of its answer's tokens, and whether all of them are the likeliest."""
    longest = max(len(ids) for ids, _ in rows)
    padded = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows])
    hidden = model.model(input_ids=padded).last_hidden_state  # pads are after every real token
    found = []
    for (ids, labels), states in zip(rows, hidden, strict=True):
        start = labels.count(-100)
        targets = torch.tensor(ids[start:])
        logits = model.lm_head(states[start - 1 : len(ids) - 1])  # (answer, vocabulary)
        hit = bool((logits.argmax(-1) == targets).all())
        found.append((F.cross_entropy(logits, targets, reduction="none"), hit))
    return found
