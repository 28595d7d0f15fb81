"""What the experiments of the LoRA page share: model, data, one training run, its held-out loss.

A seed decides the adapter's starting values, which examples are seen, and in what order.
"""

import torch
from torch import nn

from course_pkg.finetuning.batches import batches
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.history import History
from course_pkg.finetuning.masking import tokenize_example
from course_pkg.finetuning.trainer import count_targets, train
from course_pkg.lm.datasets import load_examples
from course_pkg.lm.load import load

DATA = ("navigator/train.jsonl", "navigator/held-out.jsonl")
STEPS, BATCH, WARMUP = 30, 2, 4
HELD_OUT = 16  # answers
SETTINGS = {
    "model": "smollm2-135m",
    "batch": BATCH,
    "warmup_steps": WARMUP,
    "schedule": "linear",
    "held_out": HELD_OUT,
}


class Task:
    """A loaded model with the navigator's data."""

    def __init__(self) -> None:
        self.model, tokenizer = load(SETTINGS["model"])
        self.pad = tokenizer.pad_token_id
        self.examples = [tokenize_example(e, tokenizer) for e in load_examples(split="train")]
        held_out = load_examples(split="held-out")[:HELD_OUT]
        self.held_out = [tokenize_example(e, tokenizer) for e in held_out]

    def train(self, learning_rate: float, seed: int, steps: int = STEPS) -> History:
        """Train what requires a gradient, on as many different examples as the steps take."""
        data = list(batches(self.examples, BATCH, self.pad, seed=seed))
        config = TrainConfig(
            steps=steps,
            learning_rate=learning_rate,
            warmup_steps=WARMUP,
            shuffle=False,  # `batches` has shuffled
            seed=seed,
            progress=False,
        )
        return train(self.model, data, config)

    @torch.no_grad()
    def held_out_nll(self, count: int = HELD_OUT) -> float:
        """Mean negative log-likelihood per held-out answer token, in nats."""
        total, tokens = 0.0, 0
        for batch in batches(self.held_out[:count], 4, self.pad):
            targets = count_targets(batch, shifted=True)
            total += self.model(**batch).loss.item() * targets
            tokens += targets
        return total / tokens

    def linear_layers(self) -> dict[str, nn.Linear]:
        """Name → layer of every linear layer that "all-linear" adapts: all but the output head."""
        head = self.model.get_output_embeddings()
        found: dict[str, nn.Linear] = {}
        for name, module in self.model.named_modules():
            if isinstance(module, nn.Linear) and module is not head:
                found[name] = module
        return found
