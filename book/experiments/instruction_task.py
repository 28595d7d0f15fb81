"""What the experiments on templates, leaks and dialogues share: a model, losses, and answers."""

import torch
from torch import nn

from course_pkg.adapters.injection import inject, remove_adapters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.batches import batches, collate
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.conversations import Conversation, Message
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load
from course_pkg.studies.instructions.instruction_data import Instruction

LORA = LoRAConfig(rank=8, alpha=16, target_modules="all-linear")
RATE, WARMUP = 1e-3, 4
LIMIT = 64  # tokens of an answer
SETTINGS = {
    "model": "smollm2-135m",
    "adapter": repr(LORA),
    "learning_rate": RATE,
    "warmup_steps": WARMUP,
    "schedule": "linear",
    "most_tokens": LIMIT,
}


def conversation(item: Instruction) -> Conversation:
    """An instruction and its answer as a conversation of one turn."""
    turns = (Message("user", item.user_turn), Message("assistant", item.response))
    return Conversation(turns, item.id)


class Task:
    """A loaded model, which can be tuned, and restored."""

    def __init__(self) -> None:
        self.model, self.tokenizer = load(SETTINGS["model"])

    def tune(self, examples: list[TokenizedExample], batch: int, steps: int, seed: int) -> None:
        """Train a new LoRA adapter for some steps, epoch by epoch in another order."""
        inject(self.model, LORA, generator=torch.Generator().manual_seed(seed))
        data = []
        while len(data) < steps:
            seed_of_epoch = 100 * seed + len(data)
            data += batches(examples, batch, self.tokenizer.pad_token_id, seed=seed_of_epoch)
        config = TrainConfig(
            steps=steps,
            learning_rate=RATE,
            warmup_steps=WARMUP,
            shuffle=False,  # `batches` has shuffled
            seed=seed,
            progress=False,
        )
        train(self.model, data[:steps], config)

    def restore(self) -> None:
        """Remove the adapter."""
        remove_adapters(self.model)

    @torch.no_grad()
    def losses(self, examples: list[TokenizedExample]) -> list[list[float]]:
        """For each example: the answers' nats, their number of tokens, the end tokens' nats.

        The first two leave out the end tokens, so that they are about the same text whatever the
        template.
        """
        found: dict[int, list[float]] = {}
        order = sorted(range(len(examples)), key=lambda index: len(examples[index].input_ids))
        for start in range(0, len(order), 6):
            indices = order[start : start + 6]
            batch = collate([examples[at] for at in indices], self.tokenizer.pad_token_id)
            labels = batch.pop("labels")[:, 1:]
            logits = self.model(**batch).logits[:, :-1]
            nats = nn.functional.cross_entropy(
                logits.transpose(1, 2), labels, ignore_index=IGNORE_INDEX, reduction="none"
            )
            ends = labels == self.tokenizer.eos_token_id
            texts = (labels != IGNORE_INDEX) & ~ends
            for row, at in enumerate(indices):
                found[at] = [
                    nats[row][texts[row]].sum().item(),
                    int(texts[row].sum()),
                    nats[row][ends[row]].sum().item(),
                ]
        return [found[at] for at in range(len(examples))]

    @torch.no_grad()
    def write(self, prompts: list[str]) -> list[tuple[str, bool]]:
        """For each rendered prompt: what the model writes, greedily, and whether it stopped."""
        written: dict[int, tuple[str, bool]] = {}
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        stops = set(self.model.generation_config.eos_token_id)
        for start in range(0, len(order), 20):
            indices = order[start : start + 20]
            batch = self.tokenizer(
                [prompts[at] for at in indices],
                return_tensors="pt",
                padding=True,
                padding_side="left",
                add_special_tokens=False,
            )
            output = self.model.generate(
                **batch,
                max_new_tokens=LIMIT,
                do_sample=False,
                pad_token_id=self.tokenizer.pad_token_id,
            )[:, batch["input_ids"].shape[1] :]
            for row, at in enumerate(indices):
                text = self.tokenizer.decode(output[row], skip_special_tokens=True)
                written[at] = (text, not stops.isdisjoint(output[row].tolist()))
        return [written[at] for at in range(len(prompts))]
