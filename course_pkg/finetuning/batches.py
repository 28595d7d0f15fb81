"""Batches for training: examples padded to the longest, or several packed into one row.

Padding has no loss, so a batch has the same loss as its examples computed one by one. In a packed
row, positions restart at each example, and the mask hides the row's other examples: losses and
gradients equal those of separate rows.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from course_pkg.common.arguments import require_integer
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample

Batch = Mapping[str, Tensor]


def collate(examples: Sequence[TokenizedExample], pad_token_id: int) -> dict[str, Tensor]:
    """One batch: input_ids, attention_mask and labels, each int64 of shape (batch, longest).

    Padding is on the right; the masks hide it, so any `pad_token_id` will do.

    >>> short, long = TokenizedExample((5,), (5,)), TokenizedExample((6, 7), (-100, 7))
    >>> batch = collate([short, long], pad_token_id=0)
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[5, 0], [6, 7]], [[5, -100], [-100, 7]])
    """
    if not examples:
        raise ValueError("a batch needs at least one example, got 0")
    if wrong := [example for example in examples if not isinstance(example, TokenizedExample)]:
        raise TypeError(
            f"examples must be TokenizedExamples, got {wrong[0]!r:.80}; "
            "call tokenize_example(prompt, response, tokenizer) first"
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

    Args:
        seed: shuffles the examples, the same way for the same seed; None keeps their order.
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
    """The number of labels that the model predicts; a causal model never predicts the first."""
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


@dataclass(frozen=True)
class PackedRow:
    """Samples one after another: token ids, labels (the first of each is IGNORE_INDEX), lengths."""

    input_ids: tuple[int, ...]
    labels: tuple[int, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class PaddingWaste:
    """The share of positions that are padding, between 0 and 1, for three ways to make batches."""

    plain: float
    sorted: float
    packed: float


class PackedBatches(Sequence):
    """Batches of packed rows in the form that transformers models take, made when asked for.

    Each is a dict of input_ids, labels and position_ids, int64 of shape (batch, length), and of
    attention_mask (`packed_mask`), which takes 4 · batch · length² bytes, so none is kept.
    """

    def __init__(self, rows: Sequence[Sequence[PackedRow]], length: int, pad_token_id: int) -> None:
        self.rows = rows
        self.length = length
        self.pad_token_id = pad_token_id

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        rows = self.rows[index]
        length = self.length
        positions = [list(chain.from_iterable(map(range, row.lengths))) for row in rows]
        return {
            "input_ids": padded([row.input_ids for row in rows], length, self.pad_token_id),
            "labels": padded([row.labels for row in rows], length, IGNORE_INDEX),
            "position_ids": padded(positions, length, 0),
            "attention_mask": packed_mask([row.lengths for row in rows], length),
        }


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of lengths in groups whose sums are at most the capacity.

    From long to short, each length goes to the first group with room for it. The number of groups
    is at most 11/9 of the smallest possible one, plus 6/9. Source: Johnson 1973; Dósa 2007 (the
    bound).

    >>> first_fit_decreasing([4, 8, 1, 4, 2, 1], capacity=10)
    [[1, 4], [0, 3, 2, 5]]
    """
    require_integer(capacity, "capacity")
    for index, length in enumerate(lengths):
        if require_integer(length, f"length {index}") > capacity:
            raise ValueError(
                f"sample {index} has {length} tokens, more than the {capacity} of a row; "
                "set max_length in tokenize_conversations, or make the rows longer"
            )
    groups: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        free = (number for number, left in enumerate(room) if left >= lengths[index])
        group = next(free, len(groups))
        if group == len(groups):
            groups.append([])
            room.append(capacity)
        groups[group].append(index)
        room[group] -= lengths[index]
    return groups


def pack(examples: Sequence[TokenizedExample], length: int) -> list[PackedRow]:
    """Every example once, in rows of at most `length` tokens, by `first_fit_decreasing`."""
    if not examples:
        raise ValueError("packing needs at least one example, got 0")
    rows = []
    for group in first_fit_decreasing([len(example.input_ids) for example in examples], length):
        members = [examples[index] for index in group]
        ids = chain.from_iterable(example.input_ids for example in members)
        labels = chain.from_iterable((IGNORE_INDEX, *example.labels[1:]) for example in members)
        lengths = (len(example.input_ids) for example in members)
        rows.append(PackedRow(tuple(ids), tuple(labels), tuple(lengths)))
    return rows


def packed_batches(
    examples: Sequence[TokenizedExample],
    length: int,
    batch_size: int,
    pad_token_id: int,
    *,
    seed: int | None = None,
) -> PackedBatches:
    """Batches of packed rows for `train`, which contain every example once.

    Args:
        length: of every row, in tokens, padding included.
        batch_size: rows per batch; the last batch may be smaller.
        seed: shuffles the rows; None keeps the rows with the longest examples first.
    """
    require_integer(batch_size, "batch_size")
    rows = in_order(pack(examples, length), seed)
    starts = range(0, len(rows), batch_size)
    return PackedBatches(
        [rows[start : start + batch_size] for start in starts], length, pad_token_id
    )


def packed_mask(lengths: Sequence[Sequence[int]], length: int) -> Tensor:
    """The additive attention mask of packed rows, fp32 of shape (rows, 1, length, length).

    A token attends to itself and to earlier tokens of its sample (0); everything else is -inf. The
    padding of a row is a sample of its own, because a token that attends to nothing would give NaN.
    A boolean mask would work with "sdpa" only: "eager" adds the mask to the scores.

    Args:
        lengths: of each row's samples.
    """
    numbers = [
        list(chain.from_iterable([number] * count for number, count in enumerate(row)))
        for row in lengths
    ]
    sample = padded(numbers, length, -1)
    same = sample[:, :, None] == sample[:, None, :]
    seen = same & torch.ones(length, length, dtype=torch.bool).tril()
    return torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))[:, None]


def padding_waste(lengths: Sequence[int], batch_size: int, row_length: int) -> PaddingWaste:
    """The share of padding in batches in the given order, sorted by length, and in packed rows.

    Args:
        lengths: of the samples, in tokens; a batch is padded to its longest one.
        row_length: tokens of a packed row.
    """
    require_integer(batch_size, "batch_size")
    if not lengths:
        raise ValueError("padding_waste needs at least one length, got 0")
    rows = first_fit_decreasing(lengths, row_length)

    def batched(values: Sequence[int]) -> float:
        groups = [values[start : start + batch_size] for start in range(0, len(values), batch_size)]
        return 1 - sum(values) / sum(len(group) * max(group) for group in groups)

    return PaddingWaste(
        batched(lengths),
        batched(sorted(lengths, reverse=True)),
        1 - sum(lengths) / (len(rows) * row_length),
    )
