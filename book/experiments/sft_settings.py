"""What do learning rate, epochs, batch size and masks do in supervised fine-tuning? SmolLM2 + LoRA.

    python book/experiments/sft_settings.py            run what is missing of the record
    python book/experiments/sft_settings.py --confirm  after an edit: run one short row again

Every run trains an adapter on a part of the course's instructions and measures the loss of the
validation answers. The base and three of the runs also answer test instructions, with greedy
decoding; the record keeps the answers, and which of them follow their instructions.
The base computes in bf16 and the adapter in fp32. The probe alone has its base in fp32, because
bf16 gives other roundings on other processors.
"""

import random
import time
from dataclasses import replace

import torch
from record import main

from course_pkg.adapters.injection import inject, remove_adapters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.batches import batches
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.formats import chat_prompt
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample, tokenize_example
from course_pkg.finetuning.trainer import mean_loss, train
from course_pkg.lm.load import load
from course_pkg.studies.instructions.instruction_data import (
    Instruction,
    load_instructions,
    unmet_checks,
)

DATA = tuple(f"instructions/{split}.jsonl" for split in ("train", "validation", "test"))
RANK, ALPHA = 8, 16
MICRO_BATCH = 4  # larger batches are accumulated from these
LONGEST = 110  # tokens of a training sample; longer ones are left out, to save time
ANSWER_BATCH, MOST_TOKENS = 20, 110  # the longest test answer has 103
RATE, ITEMS, BATCH = 1e-3, 64, 4
PROBE = {
    "base": "fp32",
    "items": 8,
    "steps": 2,
    "batch": 4,
    "rate": RATE,
    "loss": "answers",
    "answered": 0,
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def plan() -> list[dict]:
    """The rows: the base, a data set seen once or more often, rates, batch sizes, and masks."""
    epoch = ITEMS // BATCH
    return [
        PROBE,
        {"base": "bf16", "steps": 0, "answered": 60},
        run(items=3 * ITEMS, steps=3 * epoch, answered=60),
        run(steps=epoch),
        *[run(steps=epoch, rate=rate) for rate in (1e-4, 1e-2)],
        run(steps=epoch, loss="all tokens"),
        run(steps=3 * epoch, answered=60),
        run(steps=epoch, rate=3e-3),
        run(steps=epoch, loss="no end token", answered=20),
        *[run(steps=ITEMS // batch, batch=batch) for batch in (16, 1)],
    ]


def run(
    *,
    steps: int,
    items: int = ITEMS,
    batch: int = BATCH,
    rate: float = RATE,
    loss: str = "answers",
    answered: int = 0,
) -> dict:
    """The key of one run. loss: which tokens are targets. answered: test instructions."""
    return {
        "base": "bf16",
        "items": items,
        "steps": steps,
        "batch": batch,
        "rate": rate,
        "loss": loss,
        "answered": answered,
    }


class Task:
    """A loaded model with the instructions, and what is done with them."""

    def __init__(self) -> None:
        self.model, self.tokenizer = load("smollm2-135m")
        pool = [self.tokenized(item) for item in load_instructions("train")]
        pool = [example for example in pool if len(example.input_ids) <= LONGEST]
        self.train_examples = random.Random(0).sample(pool, len(pool))
        validation = [self.tokenized(item) for item in load_instructions("validation")[::2]]
        validation.sort(key=lambda example: len(example.input_ids))
        self.validation = batches(validation, 8, self.tokenizer.pad_token_id)
        self.test = load_instructions("test")

    def tokenized(self, item: Instruction) -> TokenizedExample:
        """One instruction with its answer as the only target."""
        return tokenize_example(item.user_turn, item.response, self.tokenizer)

    @torch.no_grad()
    def answers(self, items: list[Instruction]) -> list[str]:
        """Greedy answers, in the order of the items; one that ends has the end token in it."""
        prompts = [chat_prompt(item.user_turn, self.tokenizer) for item in items]
        order = sorted(range(len(items)), key=lambda index: len(prompts[index]))
        written: dict[int, str] = {}
        for start in range(0, len(order), ANSWER_BATCH):
            part = order[start : start + ANSWER_BATCH]
            batch = self.tokenizer(
                [prompts[index] for index in part],
                return_tensors="pt",
                padding=True,
                add_special_tokens=False,
            )
            output = self.model.generate(
                **batch,
                max_new_tokens=MOST_TOKENS,
                do_sample=False,
                pad_token_id=self.tokenizer.pad_token_id,
            )
            for index, ids in zip(part, output[:, batch["input_ids"].shape[1] :], strict=True):
                text = self.tokenizer.decode(ids)
                written[index] = text.replace(self.tokenizer.pad_token, "")
        return [written[index] for index in range(len(items))]

    def behavior(self, count: int) -> dict:
        """Answers to the first test instructions, which follow them, and which end."""
        if not count:
            return {}
        items, end = self.test[:count], self.tokenizer.eos_token
        texts = self.answers(items)
        pairs = [(text.removesuffix(end), item) for text, item in zip(texts, items, strict=True)]
        return {
            "texts": [text for text, _ in pairs],
            "followed": [int(not unmet_checks(text, item.checks)) for text, item in pairs],
            "ended": [int(text.endswith(end)) for text in texts],
        }


def with_loss(example: TokenizedExample, loss: str) -> TokenizedExample:
    """The same tokens with other targets: all of them, or the answer without its end token."""
    if loss == "all tokens":
        return replace(example, labels=example.input_ids)
    if loss == "no end token":
        return replace(example, labels=(*example.labels[:-1], IGNORE_INDEX))
    return example


def measure(task: Task, key: dict) -> dict:
    """One run: train an adapter, measure, and take it out again."""
    task.model.to(DTYPES[key["base"]])
    if key["steps"] == 0:
        return {"nll": mean_loss(task.model, task.validation), **task.behavior(key["answered"])}
    examples = [with_loss(each, key["loss"]) for each in task.train_examples[: key["items"]]]
    micro = min(key["batch"], MICRO_BATCH)
    config = TrainConfig(
        steps=key["steps"],
        learning_rate=key["rate"],
        accumulation=key["batch"] // micro,
        warmup_steps=max(1, key["steps"] // 8),
        evaluate_every=max(2, min(key["items"], ITEMS) // key["batch"]),
        progress=False,
    )
    lora = LoRAConfig(rank=RANK, alpha=ALPHA, target_modules="all-linear")
    inject(task.model, lora, generator=torch.Generator().manual_seed(0))
    started = time.process_time()
    history = train(
        task.model,
        batches(examples, micro, task.tokenizer.pad_token_id),
        config,
        evaluate=lambda model: mean_loss(model, task.validation),
    )
    result = {
        "nll": history.evaluations[-1].value,
        "validation": [each.value for each in history.evaluations],
        "losses": history.losses,
        "cpu_seconds": time.process_time() - started,
        **task.behavior(key["answered"]),
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
        "most_tokens": MOST_TOKENS,
    }
    main(__file__, plan(), Task, measure, probe=PROBE, settings=settings, data=DATA)
