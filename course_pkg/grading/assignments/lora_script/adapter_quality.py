"""`lora-script`: what an adapter must reach, on tickets drawn after the submission.

It is measured on the checker's own base model. The bars are on the loss per answer token in nats.
An answer written without reading the prompt costs at least 1.2, because names, cities and numbers
are drawn independently; the base alone costs 2.5.

Chapter: exercises.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from course_pkg.adapters.injection import adapter_layers, inject, remove_adapters
from course_pkg.finetuning.conversations import Conversation, Message
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample, tokenize_conversation
from course_pkg.grading.assignments.lora_script.submitted_adapter import (
    ASKED,
    Rejected,
    read_adapter,
    read_report,
)
from course_pkg.lm import smollm2
from course_pkg.lm.load import LoadedModel, load
from course_pkg.pages.datasets import TICKET_SYSTEM, draw_tickets, ticket_file

FRESH = 12  # tickets for one property
BATCH = 8
FORMAT_BAR = 0.9
TASK_BAR = 0.3
EXACT_BAR = 0.25
LOSS_TOLERANCE = 0.03  # another processor, or a GPU in 16 bits
EXACT_TOLERANCE = 0.05
SEEN_ABOVE = "the adapter was rejected: see above"
Records = list[tuple[str, str]]  # prompts with their answers
Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Measured:
    """Mean loss per answer token in nats, and the share of answers that are right to the end."""

    loss: float
    exact: float


def adapter_format(rng: Random, size: int) -> dict[str, Records]:
    """Fresh tickets."""
    return {"records": [(r["prompt"], r["answer"]) for r in draw_tickets(FRESH, rng)]}


adapter_task = adapter_report = adapter_format


def adapter_expected(inputs: dict[str, Records]) -> Records:
    """The tickets themselves, which carry their right answers."""
    return inputs["records"]


def learned_format(records: Records, files: Any) -> str | None:
    """A comparator: the loss is below what any answer costs that ignores the prompt."""
    try:
        loss = measure(read_adapter(files), records).loss
    except Rejected as error:
        return str(error)
    if loss <= FORMAT_BAR:
        return None
    base = measure(None, records).loss
    return (
        f"the loss on {len(records)} fresh tickets is {loss:.2f}; expected at most {FORMAT_BAR} "
        f"(without an adapter it is {base:.2f}, and about 1.2 if the prompt is ignored)"
    )


def learned_task(records: Records, files: Any) -> str | None:
    """A comparator: the loss is small, and many answers are right to the last token."""
    try:
        found = measure(read_adapter(files), records)
    except Rejected:
        return SEEN_ABOVE
    if found.loss <= TASK_BAR and found.exact >= EXACT_BAR:
        return None
    return (
        f"on {len(records)} fresh tickets the loss is {found.loss:.2f}, expected at most "
        f"{TASK_BAR}, and {found.exact:.0%} of the answers are right, expected {EXACT_BAR:.0%}"
    )


def matching_report(records: Records, files: Any) -> str | None:
    """A comparator: the report has the loss and the exact answers on the course's held-out file."""
    try:
        weights = read_adapter(files)
    except Rejected:
        return SEEN_ABOVE
    try:
        report = read_report(files)
    except Rejected as error:
        return str(error)
    held_out, _ = read_records(ticket_file("held-out"))
    found = measure(weights, held_out)
    if found.loss > FORMAT_BAR:
        return f"no report counts for an adapter with a held-out loss of {found.loss:.2f}"
    for name, value, tolerance in (
        ("held_out_loss", found.loss, LOSS_TOLERANCE),
        ("exact_match", found.exact, EXACT_TOLERANCE),
    ):
        if not abs(report[name] - value) <= tolerance:
            return f"{name} is {report[name]:.4g} in your report; this adapter has {value:.4g}"
    return None


def read_records(text: str) -> tuple[Records, int]:
    """The first answered record of every prompt in JSON Lines, and how many are left out."""
    records = [json.loads(line) for line in text.split("\n") if line.strip()]
    first: dict[str, str] = {}
    for record in records:
        if record.get("answer", "").strip():
            first.setdefault(record["prompt"], record["answer"])
    return list(first.items()), len(records) - len(first)


def encode(messages: Sequence[Mapping[str, str]], answer: str, tokenizer: Any) -> TokenizedExample:
    """Token ids and labels of an answer after these messages; earlier answers have no labels."""
    turns = [Message(message["role"], message["content"]) for message in messages]
    conversation = Conversation((*turns, Message("assistant", answer)))
    return tokenize_conversation(conversation, tokenizer, answers="last")


@lru_cache(maxsize=1)
def base() -> LoadedModel:
    """The base model and its tokenizer, loaded once."""
    return load(smollm2.NAME)


def measure(weights: Weights | None, records: Sequence[Sequence[str]]) -> Measured:
    """The base with an adapter, or alone, on pairs of a prompt and its answer.

    An answer is right if every token, the end included, is the most likely one after those before
    it: exactly then greedy generation gives it.
    """
    model, tokenizer = base()
    system = {"role": "system", "content": TICKET_SYSTEM}
    rows = [
        encode([system, {"role": "user", "content": prompt}], answer, tokenizer)
        for prompt, answer in records
    ]
    costs: list[Tensor] = []
    right = 0
    try:
        if weights is not None:
            _add(model, weights)
        for start in range(0, len(rows), BATCH):
            for cost, exact in _batch(model, rows[start : start + BATCH]):
                costs.append(cost)
                right += exact
    finally:
        remove_adapters(model)
    return Measured(torch.cat(costs).mean().item(), right / len(rows))


def _add(model: Any, weights: Weights) -> None:
    inject(model, ASKED)
    with torch.no_grad():
        for name, layer in adapter_layers(model).items():
            for part in layer.parts:
                tensor = weights[f"base_model.model.{name}.{part}.weight"]
                getattr(layer, part)["default"].copy_(tensor)


@torch.no_grad()
def _batch(model: Any, rows: Sequence[TokenizedExample]) -> list[tuple[Tensor, bool]]:
    """For each row the costs of its answer's tokens, and whether all of them are the likeliest."""
    longest = max(len(row.input_ids) for row in rows)
    padded = [[*row.input_ids, *[0] * (longest - len(row.input_ids))] for row in rows]
    hidden = model.model(input_ids=torch.tensor(padded)).last_hidden_state  # pads come last
    found = []
    for row, states in zip(rows, hidden, strict=True):
        start = row.labels.count(IGNORE_INDEX)
        targets = torch.tensor(row.input_ids[start:])
        logits = model.lm_head(states[start - 1 : len(row.input_ids) - 1])  # (answer, vocabulary)
        exact = bool((logits.argmax(-1) == targets).all())
        found.append((F.cross_entropy(logits, targets, reduction="none"), exact))
    return found
