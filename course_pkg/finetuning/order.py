"""The order in which training sees its batches: epoch by epoch, from any position on.

The order follows from the seed and the number of the epoch, so a resumed run needs no saved state.

Chapter: finetuning/sft.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping

import torch

from course_pkg.finetuning.evaluation import Batch


def stream(
    batches: Iterable[Batch], *, seed: int, shuffle: bool, start: int = 0
) -> Iterator[Batch]:
    """Yield batches without end, from the batch number `start` on, counted from 0.

    A sequence is reshuffled every epoch, unless shuffle is False; an iterable keeps its order.
    Raises TypeError for what can't be repeated, ValueError if there is no batch.

    >>> endless = stream(["a", "b", "c"], seed=0, shuffle=False, start=1)
    >>> [next(endless) for _ in range(4)]
    ['b', 'c', 'a', 'b']
    """
    if isinstance(batches, Mapping):
        raise TypeError("batches must be a sequence of batches, got a single batch")
    if hasattr(batches, "__next__"):
        raise TypeError(
            "batches must be repeatable (a list, a DataLoader), got a one-time iterator"
        )
    if not isinstance(batches, Iterable):
        raise TypeError(f"batches must be a list or a DataLoader, got {batches!r:.80}")
    if not (hasattr(batches, "__getitem__") and hasattr(batches, "__len__")):
        endless = itertools.chain.from_iterable(_epochs(batches))
        yield from itertools.islice(endless, start, None)
        return
    if len(batches) == 0:
        raise ValueError("batches is empty: nothing to train on")
    for epoch in itertools.count(start // len(batches)):
        order = list(range(len(batches)))
        if shuffle:
            generator = torch.Generator().manual_seed(seed + epoch)
            order = torch.randperm(len(batches), generator=generator).tolist()
        yield from (batches[i] for i in order[start % len(batches) :])
        start = 0


def _epochs(batches: Iterable[Batch]) -> Iterator[Iterable[Batch]]:
    while True:
        first = next(iterator := iter(batches), None)
        if first is None:
            raise ValueError("batches is empty: nothing to train on")
        yield itertools.chain([first], iterator)
