"""How much does a model forget when it is fine-tuned? SmolLM2, by method and learning rate.

    python book/experiments/forgetting.py            run what is missing of the record
    python book/experiments/forgetting.py --confirm  after an edit: run one short row again

Data, model and adapter are those of `sft_settings`, with the base in fp32. A run sees 64
instructions once; its seed decides which, in what order, and how the adapter starts. Then it is
measured three times: on the validation answers, on plain sentences of the course, and on beginnings
that most people can complete. No run trains on any of them.
"""

import random

import torch
import torch.nn.functional as F
from completions import COMPLETIONS
from record import main
from sft_settings import ALPHA, DATA, ITEMS, LONGEST, RANK, Task
from torch import Tensor

from course_pkg.adapters.injection import inject, remove_adapters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.batches import batches
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import mean_loss, train
from course_pkg.pages.datasets import load_texts

START = "<|endoftext|>"  # what stands between texts in the pre-training of SmolLM2
SEEDS, BATCH = range(2), 4
RATES = {"lora": (3e-4, 1e-3, 3e-3), "full": (3e-5, 1e-4, 3e-4)}
PROBE = {"method": "lora", "items": 8, "rate": 1e-3, "seed": 0}
PLAN = [
    PROBE,
    {"method": "none", "items": 0, "rate": 0.0, "seed": 0},
    *(
        {"method": method, "items": ITEMS, "rate": rate, "seed": seed}
        for seed in SEEDS
        for method in RATES
        for rate in RATES[method]
    ),
]


class Forgetting(Task):
    """The task, with the weights that a full fine-tuning changes, and plain sentences."""

    def __init__(self) -> None:
        super().__init__()
        self.model.float()
        self.weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.sentences = [self.ids(START + text) for text in load_texts("passages", "test")]
        self.beginnings = [(self.ids(START + a), self.ids(b)) for a, b in COMPLETIONS.items()]

    def ids(self, text: str) -> Tensor:
        """The tokens of a text, (1, tokens)."""
        return self.tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids

    @torch.no_grad()
    def measured(self) -> dict:
        """The loss of the validation answers, each sentence's loss and tokens, each completion's
        loss, and whether greedy decoding finds it.
        """
        plain = []
        for ids in self.sentences:
            count = ids.shape[1] - 1  # the first token is not predicted
            plain.append([self.model(input_ids=ids, labels=ids).loss.item() * count, count])
        completions = []
        for beginning, completion in self.beginnings:
            logits = self.model(input_ids=torch.cat([beginning, completion], 1)).logits[0]
            logits = logits[beginning.shape[1] - 1 : -1]  # of each token of the completion
            loss = F.cross_entropy(logits, completion[0], reduction="sum").item()
            found = torch.equal(logits.argmax(-1), completion[0])
            completions.append([loss, int(found)])
        nll = mean_loss(self.model, self.validation)
        return {"nll": nll, "plain": plain, "completions": completions}

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
    steps = key["items"] // BATCH
    examples = random.Random(key["seed"]).sample(task.train_examples, key["items"])
    history = train(
        task.model,
        batches(examples, BATCH, task.tokenizer.pad_token_id),
        TrainConfig(
            steps=steps,
            learning_rate=key["rate"],
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
        "batch": BATCH,
        "schedule": "linear, warm-up an eighth of the steps",
        "longest": LONGEST,
        "validation_items": 20,
        "sentences": len(load_texts("passages", "test")),
    }
    data = (*DATA, "passages/test.jsonl")
    main(__file__, PLAN, Forgetting, measure, probe=PROBE, settings=settings, data=data)
