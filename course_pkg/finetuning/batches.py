"""Batches for training: examples padded to the longest of the batch, in a seeded order.

Padding has 0 in the attention mask and IGNORE_INDEX in the labels, so a batch has the same loss as
its examples computed one by one.

Chapter: adapters/lora-training.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from course_pkg.arguments import require_integer
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample


def collate(examples: Sequence[TokenizedExample], pad_token_id: int) -> dict[str, Tensor]:
    """One batch: input_ids, attention_mask and labels, each int64 of shape (batch, longest).

    Padding is on the right. pad_token_id: any token id, because the masks hide it.
    Raises ValueError for an empty batch, TypeError for anything but tokenized examples and an id.

    >>> short, long = TokenizedExample((5,), (5,)), TokenizedExample((6, 7), (-100, 7))
    >>> batch = collate([short, long], pad_token_id=0)
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[5, 0], [6, 7]], [[5, -100], [-100, 7]])
    """
    if not examples:
        raise ValueError("a batch needs at least one example, got 0")
    if wrong := [each for each in examples if not isinstance(each, TokenizedExample)]:
        raise TypeError(
            f"examples must be TokenizedExamples, got {wrong[0]!r:.80}; "
            "call tokenize_example(example, tokenizer) first"
        )
    if isinstance(pad_token_id, bool) or not isinstance(pad_token_id, int):
        raise TypeError(
            f"pad_token_id must be a token id, got {pad_token_id!r:.80}; if the tokenizer has no "
            "pad token, give another id, such as tokenizer.eos_token_id"
        )
    longest = max(len(example.input_ids) for example in examples)

    def padded(rows: list[tuple[int, ...]], fill: int) -> Tensor:
        return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])

    return {
        "input_ids": padded([example.input_ids for example in examples], pad_token_id),
        "attention_mask": padded([(1,) * len(example.input_ids) for example in examples], 0),
        "labels": padded([example.labels for example in examples], IGNORE_INDEX),
    }


def batches(
    examples: Sequence[TokenizedExample],
    batch_size: int,
    pad_token_id: int,
    *,
    seed: int | None = None,
) -> list[dict[str, Tensor]]:
    """Collated batches that contain every example once; the last batch may be smaller.

    seed: shuffles the examples, the same way for the same seed; None keeps the given order.
    Raises ValueError for no examples or a batch_size that is not an integer of at least 1; other
    errors as for `collate`.

    >>> examples = [TokenizedExample((token,), (token,)) for token in range(5)]
    >>> [len(batch["labels"]) for batch in batches(examples, 2, pad_token_id=0)]
    [2, 2, 1]
    """
    examples = list(examples)
    if not examples:
        raise ValueError("a batch needs at least one example, got 0")
    require_integer(batch_size, "batch_size")
    order = list(range(len(examples)))
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(examples), generator=generator).tolist()
    return [
        collate([examples[index] for index in order[start : start + batch_size]], pad_token_id)
        for start in range(0, len(order), batch_size)
    ]
