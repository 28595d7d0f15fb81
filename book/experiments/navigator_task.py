"""What the LoRA experiments share: model, data, one training run, and its loss on other answers.

The course's training set is split once: every tenth example is kept for validation, on which
learning rates are chosen, and the model trains on the rest. Results are reported on the held-out
set, which no choice uses. A seed decides the adapter's starting values, which training examples
are used, and their order.
"""

from torch import nn

from course_pkg.finetuning.batches import batches
from course_pkg.finetuning.config import Callback, TrainConfig
from course_pkg.finetuning.masking import tokenize_example
from course_pkg.finetuning.trainer import mean_loss, train
from course_pkg.finetuning.training_state import History
from course_pkg.lm.load import load
from course_pkg.pages.datasets import load_examples

DATA = ("navigator/train.jsonl", "navigator/held-out.jsonl")
STEPS, BATCH, WARMUP = 20, 2, 4
VALIDATION_EVERY = 10  # one training example in ten
TUNING_SEED, SEEDS = 0, (1, 2)  # the rates are chosen with one seed and reported with others
SETTINGS = {
    "model": "smollm2-135m",
    "steps": STEPS,
    "batch": BATCH,
    "warmup_steps": WARMUP,
    "schedule": "linear",
    "validation_every": VALIDATION_EVERY,
}


class Task:
    """A loaded model with the navigator's data, split into three."""

    def __init__(self) -> None:
        self.model, tokenizer = load(SETTINGS["model"])
        self.pad = tokenizer.pad_token_id
        examples = [
            tokenize_example(e.prompt, e.response, tokenizer) for e in load_examples(split="train")
        ]
        held_out = [
            tokenize_example(e.prompt, e.response, tokenizer)
            for e in load_examples(split="held-out")
        ]
        self.splits = {"validation": examples[::VALIDATION_EVERY], "held-out": held_out}
        self.examples = [e for at, e in enumerate(examples) if at % VALIDATION_EVERY]

    def train(
        self, learning_rate: float, seed: int, steps: int = STEPS, callback: Callback | None = None
    ) -> History:
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
        return train(self.model, data, config, callback=callback)

    def nll(self, split: str, count: int | None = None) -> float:
        """Mean negative log-likelihood per answer token of a split, in nats.

        count: use only this many answers.
        """
        return mean_loss(self.model, batches(self.splits[split][:count], 6, self.pad))

    def linear_layers(self) -> dict[str, nn.Linear]:
        """Name → layer of every linear layer that "all-linear" adapts: all but the output head."""
        head = self.model.get_output_embeddings()
        found: dict[str, nn.Linear] = {}
        for name, module in self.model.named_modules():
            if isinstance(module, nn.Linear) and module is not head:
                found[name] = module
        return found
