"""A ring all-reduce on lists, against the one with tensors and messages."""

import pytest
import torch

from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.acceleration.parallel.launch import launch
from course_pkg.acceleration.parallel.ring_steps import ring_states
from tests.tables import each_row


class Watched(Group):
    """Keeps the tensor as it is before each message, and where the message begins in it."""

    def exchange(self, tensor, into, to, source):
        at = (tensor.data_ptr() - self.tensor.data_ptr()) // tensor.itemsize
        self.seen.append((self.tensor.tolist(), at))
        return super().exchange(tensor, into, to, source)


def watch(_, numbers):
    group = Watched()
    group.tensor = torch.tensor(numbers[group.rank], dtype=torch.float64)
    group.seen = []
    group.all_reduce(group.tensor)
    return [*group.seen, (group.tensor.tolist(), None)]


@each_row(("ranks", "length"), [(1, 3), (3, 7), (4, 10)])
def test_the_states_are_those_of_the_messages(ranks, length):
    generator = torch.Generator().manual_seed(ranks)
    numbers = torch.randn(ranks, length, generator=generator, dtype=torch.float64).tolist()
    states = ring_states(numbers)
    seen = launch(watch, ranks, numbers)
    assert len(states) == 2 * (ranks - 1) + 1
    for rank in range(ranks):
        for state, (held, at) in zip(states, seen[rank], strict=True):
            chunks = state.held[rank]
            assert [number for chunk in chunks for number in chunk] == held
            if at is not None:
                assert sum(map(len, chunks[: state.sending[rank]])) == at


def test_chunks_of_fewer_numbers_than_ranks_are_empty():
    states = ring_states([[1.0], [2.0], [3.0]])
    assert states[-1].held == (((6.0,), (), ()),) * 3
    assert [state.adds for state in states] == [True, True, False, False, False]


@each_row("numbers", [[], [[1.0], [1.0, 2.0]]])
def test_other_lists_are_refused(numbers):
    with pytest.raises(ValueError, match="the same length"):
        ring_states(numbers)
