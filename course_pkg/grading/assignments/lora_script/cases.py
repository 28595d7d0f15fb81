"""`lora-script`: the cases of its questions, and the right values."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from course_pkg.adapters.injection import adapter_layers, inject, remove_adapters
from course_pkg.finetuning.conversations import Conversation, Message
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample, tokenize_conversation
from course_pkg.grading.assignments.lora_script import student
from course_pkg.grading.assignments.lora_script.submitted_adapter import (
    ASKED,
    Rejected,
    read_adapter,
    read_report,
)
from course_pkg.grading.questions import comparators
from course_pkg.grading.questions.draws import normal_arrays
from course_pkg.lm import smollm2
from course_pkg.lm.load import LoadedModel, load
from course_pkg.lm.tiny import tiny_model
from course_pkg.pages.datasets import TICKET_SYSTEM, draw_tickets, ticket_file

VOCABULARY = 6
_SUM = comparators.row(
    {"nll": comparators.number(rtol=1e-4, atol=1e-5), "tokens": comparators.number()}
)
Inputs = dict[str, Any]
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
        measured = measure(read_adapter(files), records)
    except Rejected:
        return SEEN_ABOVE
    if measured.loss <= TASK_BAR and measured.exact >= EXACT_BAR:
        return None
    return (
        f"on {len(records)} fresh tickets the loss is {measured.loss:.2f}, expected at most "
        f"{TASK_BAR}, and {measured.exact:.0%} of the answers are right, expected {EXACT_BAR:.0%}"
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
    measured = measure(weights, held_out)
    if measured.loss > FORMAT_BAR:
        return f"no report counts for an adapter with a held-out loss of {measured.loss:.2f}"
    for name, value, tolerance in (
        ("held_out_loss", measured.loss, LOSS_TOLERANCE),
        ("exact_match", measured.exact, EXACT_TOLERANCE),
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

    An answer is right if each token, the end included, is the likeliest one after those before it.
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
            _add_adapter(model, weights)
        for start in range(0, len(rows), BATCH):
            for cost, exact in _answer_costs(model, rows[start : start + BATCH]):
                costs.append(cost)
                right += exact
    finally:
        remove_adapters(model)
    return Measured(torch.cat(costs).mean().item(), right / len(rows))


def _add_adapter(model: Any, weights: Weights) -> None:
    inject(model, ASKED)
    with torch.no_grad():
        for name, layer in adapter_layers(model).items():
            for part in layer.parts:
                tensor = weights[f"base_model.model.{name}.{part}.weight"]
                getattr(layer, part)["default"].copy_(tensor)


@torch.no_grad()
def _answer_costs(model: Any, rows: Sequence[TokenizedExample]) -> list[tuple[Tensor, bool]]:
    """For each row the costs of its answer's tokens, and whether all of them are the likeliest."""
    longest = max(len(row.input_ids) for row in rows)
    padded = [[*row.input_ids, *[0] * (longest - len(row.input_ids))] for row in rows]
    hidden = model.model(input_ids=torch.tensor(padded)).last_hidden_state  # pads come last
    costs = []
    for row, states in zip(rows, hidden, strict=True):
        start = row.labels.count(IGNORE_INDEX)
        targets = torch.tensor(row.input_ids[start:])
        logits = model.lm_head(states[start - 1 : len(row.input_ids) - 1])  # (answer, vocabulary)
        exact = bool((logits.argmax(-1) == targets).all())
        costs.append((F.cross_entropy(logits, targets, reduction="none"), exact))
    return costs


def draw_file(rng: Random, size: int, fault: str = "") -> Inputs:
    """A file of tickets, without or with lines of one kind of fault."""
    examples = draw_tickets(3 + size, rng)
    lines = [json.dumps(example) for example in examples]
    if fault == "blank":
        lines.insert(rng.randrange(len(lines)), rng.choice(["", "  "]))
    if fault == "repeated":
        lines.append(json.dumps(rng.choice(examples) | {"answer": "another"}))
    if fault == "unanswered":  # and answered later
        prompt = draw_tickets(1, rng)[0]["prompt"]
        unanswered = {"prompt": prompt, "answer": " "}, {"prompt": prompt}
        lines += [
            json.dumps(record) for record in (*unanswered, {"prompt": prompt, "answer": "late"})
        ]
    return {"text": "\n".join(lines) + "\n"}


def read_expected(inputs: Inputs) -> tuple[list[tuple[str, str]], int]:
    return read_records(inputs["text"])


def draw_chat(rng: Random, size: int) -> Inputs:
    """A conversation of one turn, or of several, some with a system message."""
    *earlier, last = draw_tickets(1 + size, rng)
    messages = [{"role": "system", "content": "Ticket"}] if size % 2 else []
    for example in earlier:
        messages.append({"role": "user", "content": example["prompt"]})
        messages.append({"role": "assistant", "content": example["answer"]})
    messages.append({"role": "user", "content": last["prompt"]})
    return {"messages": messages, "answer": last["answer"]}


def encode_expected(inputs: Inputs) -> Inputs:
    """From the course's own masking."""
    tokenized = encode(inputs["messages"], inputs["answer"], student.tokenizer())
    return {"input_ids": list(tokenized.input_ids), "labels": list(tokenized.labels)}


def all_tokens(expected: Inputs, given: Any) -> str | None:
    """A comparator: the token ids."""
    return _difference("token ids", expected["input_ids"], given["input_ids"])


def prompt_labels(expected: Inputs, given: Any) -> str | None:
    """A comparator: as many labels as tokens, and those of the prompt and the answer's text."""
    labels = len(given["labels"])
    tokens = len(given["input_ids"])
    if labels != tokens:
        return f"there are {labels} labels for {tokens} token ids"
    end = len(expected["labels"]) - 1
    return _difference("labels", expected["labels"][:end], given["labels"][:end])


def _difference(what: str, expected: list[int], given: list[int]) -> str | None:
    """Where two lists begin to differ, or None. They are too long to show whole."""
    if given == expected:
        return None
    pairs = zip(given, expected, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(given), len(expected)))
    came, wanted = (str(ids[same : same + 4])[1:-1] or "nothing" for ids in (given, expected))
    return f"the first {same} {what} are right; then come {came}, but expected {wanted}"


def end_label(expected: Inputs, given: Any) -> str | None:
    """A comparator: the end token comes after the answer's own tokens, and is its own label."""
    learned = sum(label != -100 for label in expected["labels"])
    last, right = (row["input_ids"][-learned:] for row in (given, expected))
    if (reason := _difference("tokens of the answer and its end", right, last)) is not None:
        return reason
    last, right = (row["labels"][-1:] for row in (given, expected))
    return None if last == right else f"the last label is {last}; expected {right}"


def draw_rows(rng: Random, size: int, pad: bool = False) -> Inputs:
    """Rows of token ids and labels. pad: they end in the pad token, as if it were the end token."""
    pad_token_id = rng.randrange(50, 60)
    rows = []
    for length in rng.sample(range(2, 9), 3 + size):
        ids = [rng.randrange(50) for _ in range(length)]
        if pad:
            ids[-1] = pad_token_id
        rows.append((ids, [-100] * (length // 2) + ids[length // 2 :]))
    return {"rows": rows, "pad_token_id": pad_token_id}


def collate_expected(inputs: Inputs) -> dict[str, Tensor]:
    ids, labels = (list(map(torch.tensor, rows)) for rows in zip(*inputs["rows"], strict=True))
    return {
        "input_ids": pad_sequence(ids, True, inputs["pad_token_id"]),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], True, 0),
        "labels": pad_sequence(labels, True, -100),
    }


def draw_lora(rng: Random, size: int, factor: float = 1.0) -> Inputs:
    """A tiny Llama with its targets. factor: alpha divided by the rank."""
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
    rank = rng.randint(2, 6)
    return {
        "seed": rng.randrange(1000),
        "rank": rank,
        "alpha": factor * rank,
        "targets": rng.sample(names, 2 + size % 2),
        "input_ids": torch.tensor([[rng.randrange(256) for _ in range(5)]]),
    }


def lora_expected(inputs: Inputs) -> Inputs:
    """From a Llama without adapters, and one whose weights are W + alpha / rank · BA."""
    model = tiny_model(inputs["seed"])
    rank = inputs["rank"]
    shapes = {}
    with torch.no_grad():
        before = model(input_ids=inputs["input_ids"]).logits
        for name, module in model.named_modules():
            if name.rpartition(".")[2] in inputs["targets"]:
                out, in_ = module.weight.shape
                sizes = {f"{name}.lora_A": (rank, in_), f"{name}.lora_B": (out, rank)}
                A, B = (student.numbers(part, torch.Size(s)) for part, s in sizes.items())
                module.weight += inputs["alpha"] / rank * B @ A
                shapes |= {part: list(s) for part, s in sizes.items()}
        after = model(input_ids=inputs["input_ids"]).logits
    return {"trained": dict(sorted(shapes.items())), "before": before, "after": after}


def _batch(rng: Random, rows: int, width: int, prompt: bool = True) -> dict[str, Tensor]:
    """Random ids with labels; with a prompt, there is padding on the right too."""
    ids = torch.tensor([[rng.randrange(VOCABULARY) for _ in range(width)] for _ in range(rows)])
    mask = torch.ones_like(ids)
    labels = ids.clone()
    for row in range(rows):
        end = rng.randint(width // 2 + 2, width) if prompt else width
        mask[row, end:] = 0
        labels[row, end:] = labels[row, : rng.randint(2, width // 2 + 1) if prompt else 1] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def _normal(rng: Random, *shape: int) -> Tensor:
    return torch.from_numpy(normal_arrays(rng, only=shape)["only"])


def loss_shift(rng: Random, size: int) -> Inputs:
    """Rows in which every token has a label, the first one too, which can't be predicted."""
    labels = _batch(rng, 1 + size, 4 + size, prompt=False)["labels"]
    labels[:, 0] = rng.randrange(VOCABULARY)
    return {"logits": 2 * _normal(rng, *labels.shape, VOCABULARY), "labels": labels}


def loss_ignored(rng: Random, size: int) -> Inputs:
    """Rows with a prompt and padding. Each has the same logits everywhere: a shift is not seen."""
    rows = 2 + size
    width = 6 + size
    labels = torch.full((rows, width), -100)
    labels[:, :-1] = _batch(rng, rows, width - 1)["labels"]
    logits = 2 * _normal(rng, rows, 1, VOCABULARY).repeat(1, width, 1)
    return {"logits": logits, "labels": labels}


def loss_sum(rng: Random, size: int) -> Inputs:
    """No label at all; then the same rows with some."""
    inputs = loss_ignored(rng, size)
    if not size:
        inputs["labels"][:] = -100
    return inputs


def sum_or_mean(expected: list[float], given: Any) -> str | None:
    """A comparator: the loss and the tokens. A mean is accepted, which another property judges."""
    nll, tokens = expected
    if _SUM([nll / tokens, tokens], given) is None:
        return None
    return _SUM(expected, given)


def loss_expected(inputs: Inputs) -> list[float]:
    logits = inputs["logits"].double()
    labels = inputs["labels"]
    costs = [
        -logits[row, at - 1].log_softmax(-1)[labels[row, at]]
        for row, at in (labels != -100).nonzero().tolist()
        if at > 0
    ]
    return [float(sum(costs)), float(len(costs))]


def draw_steps(rng: Random, size: int, count: int = 1) -> Inputs:
    """Steps of micro-batches with different numbers of labels."""
    steps = [[_batch(rng, 1 + 2 * i, 5 + 2 * i) for i in range(2 + size)] for _ in range(count)]
    table = _normal(rng, VOCABULARY, VOCABULARY)
    return {"table": table, "rate": rng.choice([0.5, 1.0, 2.0]), "steps": steps}


def step_expected(inputs: Inputs) -> Inputs:
    """The gradient of the mean over all micro-batches at once, in training mode."""
    weights = [inputs["table"]]
    returned = []
    for batches in inputs["steps"]:
        table = weights[-1].clone().requires_grad_()
        parts = [student.toy_loss(-table[b["input_ids"]], b["labels"]) for b in batches]
        loss = sum(nll for nll, _ in parts) / sum(count for _, count in parts)
        (gradient,) = torch.autograd.grad(loss, table)
        weights.append((table - inputs["rate"] * gradient).detach())
        returned.append(loss.item())
    return {"returned": returned, "weights": weights[1:]}


def draw_evaluation(rng: Random, size: int, recorded: float = 0.0) -> Inputs:
    """Some rows are predicted right. With `recorded`, only recorded gradients show."""
    table = _normal(rng, VOCABULARY, VOCABULARY)
    batches = []
    for number in range(1 if recorded else 2 + size):
        batch = _batch(rng, 2 + number, 7)
        right = [rng.random() < 0.6 for _ in batch["labels"]]
        for row, at in (batch["labels"] != -100).nonzero().tolist():
            if right[row]:
                ids = batch["input_ids"][row]
                ids[at] = batch["labels"][row, at] = table[ids[at - 1]].argmax()
        batches.append(batch)
    how = {"training": not recorded, "_recorded": recorded * _normal(rng, VOCABULARY)}
    return {"table": table, "batches": batches, **how}


def evaluate_expected(inputs: Inputs) -> Inputs:
    table = inputs["table"]
    total = count = 0
    right = []
    for batch in inputs["batches"]:
        for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
            nll, tokens = student.toy_loss(table[ids[None]], labels[None])
            total += nll.item()
            count += int(tokens)
            places = (labels != -100).nonzero().flatten()
            right.append(bool((table[ids[places - 1]].argmax(-1) == labels[places]).all()))
    return {"loss": total / count, "exact": sum(right) / len(right)}
