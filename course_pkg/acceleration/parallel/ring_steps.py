"""A ring all-reduce of numbers in lists, step by step, without torch or processes.

`collectives.Group.all_reduce` does the same steps with tensors and messages.
Source: Patarasuk and Yuan 2009.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

Chunks = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class RingState:
    """What all ranks hold before a step."""

    held: tuple[Chunks, ...]  # for each rank its N chunks
    sending: tuple[int, ...]  # the chunk that each rank sends to the next one
    adds: bool  # whether what arrives is added, as in the reduce-scatter


def ring_states(numbers: Sequence[Sequence[float]]) -> list[RingState]:
    """The states of a ring all-reduce: one before each of the 2(N − 1) steps, and the last one.

    Args:
        numbers: a list for each of the N ranks, all of one length. If N doesn't divide the length,
            the first chunks are one number longer.

    Example:

        >>> states = ring_states([[1, 2], [10, 20]])
        >>> [state.sending for state in states], states[-1].held[0]
        ([(1, 0), (0, 1), ()], ((11,), (22,)))
    """
    lengths = {len(own) for own in numbers}
    if len(lengths) != 1:
        shown = ", ".join(map(str, sorted(lengths))) or "no ranks"
        raise ValueError(f"got {shown}: give each rank a list of the same length")
    size = len(numbers)
    held = [_split(own, size) for own in numbers]
    states = []
    for step in range(2 * (size - 1)):
        adds = step < size - 1
        sending = [(rank - step - 1) % size for rank in range(size)]
        states.append(_state(held, sending, adds))
        messages = [held[rank][chunk] for rank, chunk in enumerate(sending)]
        for rank, (chunk, message) in enumerate(zip(sending, messages, strict=True)):
            chunks = held[(rank + 1) % size]
            chunks[chunk] = list(map(add, chunks[chunk], message)) if adds else message
    return [*states, _state(held, [], False)]


def _split(numbers: Sequence[float], pieces: int) -> list[list[float]]:
    whole, longer = divmod(len(numbers), pieces)
    ends = [whole * end + min(end, longer) for end in range(pieces + 1)]
    return [list(numbers[ends[at] : ends[at + 1]]) for at in range(pieces)]


def _state(held: list[list[list[float]]], sending: list[int], adds: bool) -> RingState:
    chunks = tuple(tuple(tuple(chunk) for chunk in rank) for rank in held)
    return RingState(chunks, tuple(sending), adds)
