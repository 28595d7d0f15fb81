"""Which learning rate suits which batch size, and how much does the model forget? SmolLM2 + LoRA.

    python book/experiments/sft_rates.py            run what is missing of the record
    python book/experiments/sft_rates.py --confirm  after an edit: run one short row again

Data, model and adapter are those of `sft_settings`. Each run sees the same 64 instructions once and
is then measured twice: on the validation answers, and on plain sentences, which no run trains on.
"""

import torch
from record import main
from sft_settings import ALPHA, DATA, DTYPES, ITEMS, LONGEST, MICRO_BATCH, RANK, Task

from course_pkg.adapters.injection import inject, remove_adapters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.datasets import load_texts
from course_pkg.finetuning.batches import batches
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import mean_loss, train

START = "<|endoftext|>"  # what stands between texts in the pre-training of SmolLM2
PROBE = {"base": "fp32", "items": 8, "batch": 4, "rate": 1e-3}
PLAN = [
    PROBE,
    {"base": "bf16", "items": 0, "batch": 0, "rate": 0.0},
    *(
        {"base": "bf16", "items": ITEMS, "batch": batch, "rate": rate}
        for batch, rate in ((16, 3e-3), (1, 3e-4), (4, 1e-2), (4, 1e-3))
    ),
]


@torch.no_grad()
def plain_losses(task: Task) -> list[list[float]]:
    """For each sentence, the sum of its tokens' losses in nats, and their number."""
    losses = []
    for text in load_texts("passages", "test"):
        ids = task.tokenizer(START + text, return_tensors="pt", add_special_tokens=False).input_ids
        count = ids.shape[1] - 1  # the first token is not predicted
        losses.append([task.model(input_ids=ids, labels=ids).loss.item() * count, count])
    return losses


def measure(task: Task, key: dict) -> dict:
    """One run: train an adapter, measure, and take it out again."""
    task.model.to(DTYPES[key["base"]])
    if not key["items"]:
        return {"nll": mean_loss(task.model, task.validation), "plain": plain_losses(task)}
    micro = min(key["batch"], MICRO_BATCH)
    steps = key["items"] // key["batch"]
    lora = LoRAConfig(rank=RANK, alpha=ALPHA, target_modules="all-linear")
    inject(task.model, lora, generator=torch.Generator().manual_seed(0))
    examples = task.train_examples[: key["items"]]
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
    result = {
        "nll": mean_loss(task.model, task.validation),
        "losses": history.losses,
        "plain": plain_losses(task),
    }
    remove_adapters(task.model)
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
    main(__file__, PLAN, Task, measure, probe=PROBE, settings=settings, data=data)
