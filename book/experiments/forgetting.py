"""Which learning rate suits which batch size, and how much does the model forget? SmolLM2.

    python book/experiments/sft_rates.py            run what is missing of the record
    python book/experiments/sft_rates.py --confirm  after an edit: run one short row again

Data, model and adapter are those of `sft_settings`, with the base in fp32. A run sees 64
instructions once; its seed decides which, in what order, and how the adapter starts. Then it is
measured twice: on the validation answers, and on plain sentences, which no run trains on.
"""

import random

import torch
from record import main
from sft_settings import ALPHA, DATA, ITEMS, LONGEST, MICRO_BATCH, RANK, Task

from course_pkg.adapters.injection import inject, remove_adapters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.datasets import load_texts
from course_pkg.finetuning.batches import batches
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import mean_loss, train

START = "<|endoftext|>"  # what stands between texts in the pre-training of SmolLM2
SEEDS = range(2)
RATES = {4: (3e-4, 1e-3, 3e-3), 16: (1e-3, 3e-3, 1e-2), 1: (1e-4, 3e-4, 1e-3)}  # by batch size
FULL_RATES = (3e-5, 1e-4, 3e-4)  # for batches of 4
PROBE = {"method": "lora", "items": 8, "batch": 4, "rate": 1e-3, "seed": 0}
PLAN = [
    PROBE,
    {"method": "none", "items": 0, "batch": 0, "rate": 0.0, "seed": 0},
    *(
        {"method": method, "items": ITEMS, "batch": batch, "rate": rate, "seed": seed}
        for seed in SEEDS
        for method, batch, rates in (
            *(("lora", batch, RATES[batch]) for batch in RATES),
            ("full", 4, FULL_RATES),
        )
        for rate in rates
    ),
]


class Forgetting(Task):
    """The task, with the weights that a full fine-tuning changes, and plain sentences."""

    def __init__(self) -> None:
        super().__init__()
        self.model.float()
        self.weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        sentences = load_texts("passages", "test")
        self.sentences = [
            self.tokenizer(START + text, return_tensors="pt", add_special_tokens=False).input_ids
            for text in sentences
        ]

    @torch.no_grad()
    def measured(self) -> dict:
        """The loss of the validation answers, and for each sentence its loss and its tokens."""
        plain = []
        for ids in self.sentences:
            count = ids.shape[1] - 1  # the first token is not predicted
            plain.append([self.model(input_ids=ids, labels=ids).loss.item() * count, count])
        return {"nll": mean_loss(self.model, self.validation), "plain": plain}

    def restore(self, method: str) -> None:
        """Undo a training."""
        if method == "lora":
            remove_adapters(self.model)
        else:
            self.model.load_state_dict(self.weights)


def measure(task: Forgetting, key: dict) -> dict:
    """One run: train, measure, and undo the training."""
    if key["method"] == "none":
        return task.measured()
    if key["method"] == "lora":
        lora = LoRAConfig(rank=RANK, alpha=ALPHA, target_modules="all-linear")
        inject(task.model, lora, generator=torch.Generator().manual_seed(key["seed"]))
    else:
        task.model.requires_grad_(True)
    micro = min(key["batch"], MICRO_BATCH)
    steps = key["items"] // key["batch"]
    examples = random.Random(key["seed"]).sample(task.train_examples, key["items"])
    history = train(
        task.model,
        batches(examples, micro, task.tokenizer.pad_token_id),
        TrainConfig(
            steps=steps,
            learning_rate=key["rate"],
            accumulation=key["batch"] // micro,
            warmup_steps=max(1, steps // 8),
            progress=False,
        ),
    )
    result = {"losses": history.losses, **task.measured()}
    task.restore(key["method"])
    return result


if __name__ == "__main__":
    settings = {
        "model": "smollm2-135m",
        "rank": RANK,
        "alpha": ALPHA,
        "micro_batch": MICRO_BATCH,
        "schedule": "linear, warm-up an eighth of the steps",
        "longest": LONGEST,
        "validation_items": 20,
        "sentences": len(load_texts("passages", "test")),
    }
    data = (*DATA, "passages/test.jsonl")
    main(__file__, PLAN, Forgetting, measure, probe=PROBE, settings=settings, data=data)
