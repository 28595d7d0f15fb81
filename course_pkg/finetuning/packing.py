"""Packing: several samples in one row instead of padding, without seeing each other.

Positions restart at each sample, and the attention mask hides the other samples of the row, so
losses and gradients equal those of separate rows.

Chapter: finetuning/sft.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from course_pkg.common.arguments import require_integer
from course_pkg.finetuning.batches import in_order, padded
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample


@dataclass(frozen=True)
class PackedRow:
    """Samples one after another: token ids, labels, and the samples' lengths.

    A sample's first label is IGNORE_INDEX.
    """

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

    From long to short, each length goes to the first group with room for it; equal lengths keep
    their order. The number of groups is at most 11/9 of the smallest possible one, plus 6/9.
    Raises ValueError unless each length is an integer from 1 to the capacity.
    Source: Johnson 1973; Dósa 2007 (the bound).

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
    """Every example once, in rows of at most `length` tokens, by `first_fit_decreasing`.

    Raises ValueError for no examples, an empty one, or one that is longer than a row.

    >>> examples = [TokenizedExample((5, 6), (-100, 6)), TokenizedExample((7, 8, 9), (7, 8, 9))]
    >>> pack(examples, length=8)[0].labels
    (-100, 8, 9, -100, 6)
    """
    if not examples:
        raise ValueError("packing needs at least one example, got 0")
    rows = []
    for group in first_fit_decreasing([len(each.input_ids) for each in examples], length):
        members = [examples[index] for index in group]
        ids = chain.from_iterable(each.input_ids for each in members)
        labels = chain.from_iterable((IGNORE_INDEX, *each.labels[1:]) for each in members)
        lengths = (len(each.input_ids) for each in members)
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

    length: of every row, in tokens, padding included. batch_size: rows per batch; the last batch
    may be smaller. seed: shuffles the rows, the same way for the same seed; None keeps the rows
    with the longest examples first. The attention must be "sdpa" or "eager".
    Raises ValueError as `pack` does, and for a batch_size below 1.

    >>> examples = [TokenizedExample((token,) * 3, (token,) * 3) for token in range(5)]
    >>> packed_batches(examples, 6, batch_size=2, pad_token_id=0)[0]["position_ids"].tolist()
    [[0, 1, 2, 0, 1, 2], [0, 1, 2, 0, 1, 2]]
    """
    require_integer(batch_size, "batch_size")
    rows = in_order(pack(examples, length), seed)
    starts = range(0, len(rows), batch_size)
    return PackedBatches(
        [rows[start : start + batch_size] for start in starts], length, pad_token_id
    )


def packed_mask(lengths: Sequence[Sequence[int]], length: int) -> Tensor:
    """The additive attention mask of packed rows, fp32 of shape (rows, 1, length, length).

    lengths: of each row's samples. A token attends to itself and to earlier tokens of its sample
    (0); everything else is -inf. The padding of a row is a sample of its own, because a token that
    attends to nothing would give NaN. A boolean mask would work with "sdpa" only: "eager" adds the
    mask to the scores.

    >>> packed_mask([[2, 1]], length=3)[0, 0].tolist()
    [[0.0, -inf, -inf], [0.0, 0.0, -inf], [-inf, -inf, 0.0]]
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

    lengths: of the samples, in tokens. A batch of batch_size samples is padded to its longest one,
    a packed row to row_length.
    Raises ValueError for no lengths, or as `first_fit_decreasing` does.

    >>> padding_waste([1, 4, 1, 4], batch_size=2, row_length=5)
    PaddingWaste(plain=0.375, sorted=0.0, packed=0.0)
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
