"""Does the rank matter as much in every task? LoRA and full training, each at a rate of its own.

    python book/experiments/lora_tasks.py            run what is missing of the record
    python book/experiments/lora_tasks.py --confirm  after an edit: run one short row again

Three tasks for SmolLM2. "style": answers in the form of the navigator's log. "read": a sentence
about a train ticket; the answer is the seat. "by heart": the passenger's name alone; the answer is
the same seat, so each must be learned. Only the MLPs of the last layers are trained. What is below
them gives the same vectors in every step, so it runs once for each example. "full" trains the
matrices that the adapters adapt. The softmax is over the tokens that occur in a task's answers.

Rates are chosen for each task and method with one seed; as long as the best is at an edge, another
is added. The chosen ones are measured with other seeds: "style" on the held-out set, "read" on new
tickets, and "by heart" on the tickets that were learned, which are others for each seed. Last, the
lowest rank gets four times as many steps for "by heart", to separate speed from room.
"""

import copy
import statistics
import time
from random import Random
from types import SimpleNamespace

import torch
from rate_ladder import rates_to_try
from record import main
from torch import Tensor, nn
from torch.nn import functional as F

from course_pkg.adapters.injection import inject, trainable_parameters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.masking import IGNORE_INDEX
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load
from course_pkg.pages.datasets import FIRST_NAMES, draw_tickets, load_examples

MODEL, LAYERS = "smollm2-135m", 2  # how many of the last layers are trained
TARGETS = ["gate_proj", "up_proj", "down_proj"]
ALPHA = 8.0
DATA = ("navigator/train.jsonl", "navigator/held-out.jsonl")
# Task → steps, batch, training examples, examples to measure on (0: those that were learned).
SIZES = {"by heart": (80, 12, 48, 0), "style": (30, 4, 64, 24), "read": (30, 8, 64, 32)}
RANKS = {"by heart": (1, 4, 16, 64), "style": (1, 64), "read": (1, 64)}
LONGER = {"task": "by heart", "method": "rank 1", "steps": 320}  # at the rate for fewer steps
WARMUP = 4
LADDER = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
FIRST_RATES = {"full": (3e-4, 1e-3, 3e-3), "LoRA": (3e-3, 1e-2, 3e-2)}
TUNING_SEED, SEEDS = 0, (1, 2, 3)
PROBE = {"task": "by heart", "method": "rank 4", "steps": 3, "rate": 1e-2, "seed": 0}
Row = tuple[Tensor, Tensor]  # the vectors below the last layers, (tokens, width), and the labels


class Top(nn.Module):
    """The last layers of a model, its final norm, and its head for a part of the vocabulary."""

    def __init__(self, model: nn.Module, vocabulary: Tensor) -> None:
        super().__init__()
        self.body = model.model
        self.lower, self.body.layers = self.body.layers, copy.deepcopy(self.body.layers[-LAYERS:])
        self.head = nn.Parameter(model.lm_head.weight[vocabulary], requires_grad=False)

    def predict(self, hidden: Tensor, attention_mask: Tensor, labels: Tensor) -> Row:
        """The logits, (targets, vocabulary), where a label is predicted, and these labels."""
        states = self.body(inputs_embeds=hidden, attention_mask=attention_mask).last_hidden_state
        scored = labels[:, 1:] != IGNORE_INDEX
        return states[:, :-1][scored] @ self.head.T, labels[:, 1:][scored]

    def forward(self, **batch: Tensor) -> SimpleNamespace:
        """The mean loss of a batch, in the form that `train` expects."""
        return SimpleNamespace(loss=F.cross_entropy(*self.predict(**batch)))


def texts(task: str, seed: int) -> list[tuple[str, str]]:
    """Prompts and answers: those to train on, then those to measure on."""
    _, _, old, new = SIZES[task]
    if task == "style":
        train_set, held_out = (load_examples(split=split) for split in ("train", "held-out"))
        kept = train_set[::5]  # for choosing a rate
        old_set = [example for example in train_set if example not in kept][:old]
        chosen = old_set + (kept if seed == TUNING_SEED else held_out)[:new]
        return [(f"{example.prompt}\n", example.response) for example in chosen]
    rng = Random(seed)
    found: dict[str, tuple[str, str]] = {}
    while len(found) < old + new:
        (ticket,) = draw_tickets(1, rng)
        family, seat = ticket["answer"].split(" > ")[0], ticket["answer"].split(" | ")[2]
        (first,) = (name for name in FIRST_NAMES.split() if f"{name} {family}" in ticket["prompt"])
        prompt = ticket["prompt"] if task == "read" else f"{first} {family}:"
        found.setdefault(f"{first} {family}", (prompt, f" {seat}"))
    return list(found.values())


def collate(rows: list[Row]) -> dict[str, Tensor]:
    """One batch, filled up on the right."""
    longest = max(len(labels) for _, labels in rows)
    pads = [longest - len(labels) for _, labels in rows]
    return {
        "hidden": torch.stack(
            [F.pad(h, (0, 0, 0, n)) for (h, _), n in zip(rows, pads, strict=True)]
        ),
        "attention_mask": torch.tensor([[1] * (longest - n) + [0] * n for n in pads]),
        "labels": torch.stack(
            [F.pad(x, (0, n), value=IGNORE_INDEX) for (_, x), n in zip(rows, pads, strict=True)]
        ),
    }


class Bench:
    """The model, whose lower layers run once for each example, and the examples of each task."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model, self.tokenizer = load(MODEL)
        self.model.requires_grad_(False)
        self.below: dict[tuple[str, str], Row] = {}

    @torch.no_grad()
    def row(self, prompt: str, answer: str) -> Row:
        """The vectors that enter the last layers, and the labels: the answer and an end token."""
        if (prompt, answer) not in self.below:
            start = self.tokenizer(prompt).input_ids
            ids = [*self.tokenizer(answer).input_ids, self.tokenizer.eos_token_id]
            states = self.model.model(torch.tensor([start + ids]), output_hidden_states=True)
            labels = torch.tensor([IGNORE_INDEX] * len(start) + ids)
            self.below[prompt, answer] = states.hidden_states[-1 - LAYERS][0].clone(), labels
        return self.below[prompt, answer]

    def examples(self, task: str, seed: int) -> tuple[list[Row], list[Row], Tensor]:
        """What a run trains on and is measured on, with labels as positions in the vocabulary."""
        rows = [self.row(*text) for text in texts(task, seed)]
        every = [self.tokenizer(answer).input_ids for _, answer in texts(task, seed)]
        used = {self.tokenizer.eos_token_id, *(token for ids in every for token in ids)}
        vocabulary = torch.tensor(sorted(used))
        place = torch.full((self.model.config.vocab_size,), IGNORE_INDEX)
        place[vocabulary] = torch.arange(len(vocabulary))
        rows = [(h, torch.where(x < 0, x, place[x.clamp(min=0)])) for h, x in rows]
        old = SIZES[task][2]
        return rows[:old], rows[old:] or rows, vocabulary


@torch.no_grad()
def evaluate(top: Top, rows: list[Row]) -> tuple[float, float]:
    """The mean loss per answer token, and the share of answers that greedy decoding writes."""
    losses, right = [], []
    for start in range(0, len(rows), 16):
        batch = collate(rows[start : start + 16])
        logits, labels = top.predict(**batch)
        losses += F.cross_entropy(logits, labels, reduction="none").tolist()
        hits = torch.ones_like(batch["labels"][:, 1:], dtype=torch.bool)
        hits[batch["labels"][:, 1:] != IGNORE_INDEX] = logits.argmax(-1) == labels
        right += hits.all(1).tolist()
    return statistics.fmean(losses), statistics.fmean(right)


def measure(bench: Bench, key: dict) -> dict:
    """One run: train a copy of the last layers, and measure it."""
    task, method, seed = key["task"], key["method"], key["seed"]
    old, new, vocabulary = bench.examples(task, seed)
    started = time.process_time()
    top = Top(bench.model, vocabulary)
    try:
        if method == "full":
            for name, parameter in top.body.layers.named_parameters():
                parameter.requires_grad_(any(target in name for target in TARGETS))
        elif method != "base":
            adapter = LoRAConfig(
                rank=int(method.split()[1]), alpha=ALPHA, target_modules=TARGETS, use_rslora=True
            )
            inject(top.body.layers, adapter, generator=torch.Generator().manual_seed(seed))
        trained = sum(p.numel() for p in trainable_parameters(top).values())
        losses = fit(top, old, key) if trained else []
        top.eval()
        nll, right = evaluate(top, new)
    finally:
        bench.model.model.layers = top.lower
    return {
        "trained": trained,
        "vocabulary": len(vocabulary),
        "last_losses": statistics.fmean(losses[-5:] or [0.0]),
        "nll": nll,
        "right": right,
        "cpu_seconds": time.process_time() - started,
    }


def fit(top: Top, rows: list[Row], key: dict) -> list[float]:
    """Train what requires a gradient; the loss of each step. The seed decides the order."""
    size = SIZES[key["task"]][1]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(key["seed"]))
    shuffled = [rows[at] for at in order.tolist()]
    data = [collate(shuffled[at : at + size]) for at in range(0, len(rows), size)]
    config = TrainConfig(
        steps=key["steps"],
        learning_rate=key["rate"],
        warmup_steps=WARMUP,
        seed=key["seed"],
        progress=False,
    )
    return [step.loss for step in train(top, data, config).steps]


def run(task: str, method: str, rate: float, seed: int) -> dict:
    """The key of a training run."""
    return {"task": task, "method": method, "steps": SIZES[task][0], "rate": rate, "seed": seed}


def plan(rows: list[dict]) -> list[dict]:
    """The rates to try, then the reported runs of each task and method whose rate is chosen."""
    base = [
        {"task": task, "method": "base", "steps": 0, "seed": seed}
        for task in SIZES
        for seed in (TUNING_SEED, *SEEDS)
    ]
    tuning, reported, longer = [], [], []
    for task in SIZES:
        for method in [*(f"rank {rank}" for rank in RANKS[task]), "full"]:
            same = {"task": task, "method": method, "steps": SIZES[task][0], "seed": TUNING_SEED}
            tried = {row["rate"]: row["nll"] for row in rows if same.items() <= row.items()}
            first = FIRST_RATES["full" if method == "full" else "LoRA"]
            rates, best = rates_to_try(tried, first, LADDER)
            if best is not None:
                reported += [run(task, method, best, seed) for seed in SEEDS]
                if {"task": task, "method": method}.items() <= LONGER.items():
                    longer = [{**LONGER, "rate": best, "seed": seed} for seed in SEEDS]
            tuning += [run(task, method, rate, TUNING_SEED) for rate in rates]
    return [PROBE, *base, *tuning, *reported, *longer]


if __name__ == "__main__":
    settings = {
        "model": MODEL,
        "layers": LAYERS,
        "targets": TARGETS,
        "alpha": ALPHA,
        "use_rslora": True,
        "warmup_steps": WARMUP,
        "sizes": {task: list(sizes) for task, sizes in SIZES.items()},
    }
    main(__file__, plan, Bench, measure, probe=PROBE, settings=settings, data=DATA)
