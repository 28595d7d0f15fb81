"""`parallelism`: the course's ring all-reduce, step by step, in one process.

A rank stops at a message that has not come. Then each one gets what the one before it has sent, and
all run again from the start.

Chapter: exercises.
"""

from contextlib import suppress

from torch import Tensor

from course_pkg.acceleration.parallel.collectives import Group


class _Waiting(Exception):
    """The next message has not come."""


class _Rank(Group):
    """One rank. received: the messages that have come."""

    def __init__(self, rank: int, size: int, received: list[Tensor]):
        self.rank = rank
        self.size = size
        self.algorithm = "ring"
        self.received = received
        self.sent: list[Tensor] = []

    def exchange(self, tensor: Tensor, into: Tensor, to: int, source: int) -> Tensor:
        """Keep what is sent; return what has come, or stop."""
        self.sent.append(tensor.clone())
        if len(self.sent) > len(self.received):
            raise _Waiting
        return into.copy_(self.received[len(self.sent) - 1])


def all_reduce(tensors: list[Tensor]) -> tuple[list[list[Tensor]], list[int]]:
    """The tensors of all ranks after each step, and the bytes that each rank sends in all."""
    size = len(tensors)
    received: list[list[Tensor]] = [[] for _ in tensors]
    states = []
    for _ in range(2 * size - 1):
        states.append([tensor.clone() for tensor in tensors])
        ranks = [_Rank(rank, size, received[rank]) for rank in range(size)]
        for rank, tensor in zip(ranks, states[-1], strict=True):
            with suppress(_Waiting):
                rank.all_reduce(tensor)
        received = [ranks[rank - 1].sent for rank in range(size)]
    return states[1:], [sum(tensor.nbytes for tensor in rank.sent) for rank in ranks]
