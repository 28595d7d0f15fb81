"""Batches for training: examples padded to the longest of the batch, and batches epoch by epoch.

Padding has 0 in the attention mask and IGNORE_INDEX in the labels, so a batch has the same loss as
its examples computed one by one.

Chapter: finetuning/sft.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from course_pkg.common.arguments import require_integer
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample

Batch = Mapping[str, Tensor]


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
    return {
        "input_ids": padded([e.input_ids for e in examples], longest, pad_token_id),
        "attention_mask": padded([(1,) * len(e.input_ids) for e in examples], longest, 0),
        "labels": padded([e.labels for e in examples], longest, IGNORE_INDEX),
    }


def padded(rows: Sequence[Sequence[int]], length: int, fill: int) -> Tensor:
    """Rows as one int64 tensor of shape (rows, length), filled up on the right."""
    return torch.tensor([[*row, *[fill] * (length - len(row))] for row in rows])


def batches(
    examples: Sequence[TokenizedExample],
    batch_size: int,
    pad_token_id: int,
    *,
    seed: int | None = None,
) -> list[dict[str, Tensor]]:
    """Collated batches that contain every example once; the last batch may be smaller.

    seed: shuffles the examples, the same way for the same seed; None keeps the given order.
    Raises ValueError for a batch_size below 1; other errors as for `collate`.

    >>> examples = [TokenizedExample((token,), (token,)) for token in range(5)]
    >>> [len(batch["labels"]) for batch in batches(examples, 2, pad_token_id=0)]
    [2, 2, 1]
    """
    require_integer(batch_size, "batch_size")
    ordered = in_order(examples, seed)
    if not ordered:
        raise ValueError("a batch needs at least one example, got 0")
    starts = range(0, len(ordered), batch_size)
    return [collate(ordered[start : start + batch_size], pad_token_id) for start in starts]


def in_order(items: Sequence, seed: int | None) -> list:
    """The items, shuffled if there is a seed, without torch's global random state."""
    items = list(items)
    if seed is None:
        return items
    generator = torch.Generator().manual_seed(seed)
    return [items[index] for index in torch.randperm(len(items), generator=generator).tolist()]


def count_targets(model: nn.Module, batch: Batch) -> int:
    """The number of labels that the model predicts; a causal model never predicts the first.

    Raises ValueError unless the batch is a dict of tensors with labels.
    """
    if not isinstance(batch, Mapping) or "labels" not in batch:
        raise ValueError('a batch must be a dict of tensors that includes "labels"')
    labels = batch["labels"]
    encoder_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    if labels.ndim > 1 and not encoder_decoder:
        labels = labels[:, 1:]
    return int((labels != IGNORE_INDEX).sum())


def on_device(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """The batch's tensors on a device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


def require_batches(batches: Iterable[Batch]) -> Iterable[Batch]:
    """Return the batches. Raises TypeError for a single batch, or for what isn't iterable."""
    if isinstance(batches, Mapping):
        raise TypeError("batches must be a list of batches, got a single batch: write [batch]")
    if not isinstance(batches, Iterable):
        raise TypeError(f"batches must be a list or a DataLoader, got {batches!r:.80}")
    return batches


def repeat_batches(
    batches: Iterable[Batch], *, seed: int, shuffle: bool, start: int = 0
) -> Iterator[Batch]:
    """Yield the batches epoch after epoch, without end, from batch number `start` on (from 0).

    A sequence is reshuffled every epoch, unless shuffle is False; an iterable keeps its order. The
    order follows from the seed and the epoch's number, so a resumed run needs no saved state.
    Raises TypeError for what can't be repeated, ValueError if there is no batch.

    >>> endless = repeat_batches(["a", "b", "c"], seed=0, shuffle=False, start=1)
    >>> [next(endless) for _ in range(4)]
    ['b', 'c', 'a', 'b']
    """
    if isinstance(require_batches(batches), Iterator):
        raise TypeError(
            "batches must be repeatable (a list, a DataLoader), got a one-time iterator"
        )
    if not (hasattr(batches, "__getitem__") and hasattr(batches, "__len__")):
        yield from itertools.islice(_epochs(batches), start, None)
        return
    if len(batches) == 0:
        raise ValueError("batches is empty: nothing to train on")
    for epoch in itertools.count(start // len(batches)):
        order = in_order(range(len(batches)), seed + epoch if shuffle else None)
        for index in order[start % len(batches) :]:
            yield batches[index]
        start = 0


def _epochs(batches: Iterable[Batch]) -> Iterator[Batch]:
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError("batches is empty: nothing to train on")
