"""`parallelism`: the ranks that its functions are run on, and schedules that can be completed."""

from random import Random

import pytest
import torch

from course_pkg.grading.assignments.parallelism import cases, student
from course_pkg.grading.questions.calling import WrongUse


def test_schedules_that_are_drawn_can_be_completed():
    for seed in range(20):
        orders = cases.draw_orders(Random(seed), 2)["orders"]
        done = set()
        left = [list(order) for order in orders]
        for _ in range(sum(map(len, orders))):
            for rank, actions in enumerate(left):
                before = actions and (rank - 1 if actions[0][0] == "F" else rank + 1)
                if actions and (before in (-1, len(orders)) or (before, *actions[0]) in done):
                    done.add((rank, *actions.pop(0)))
        assert not any(left), seed


def test_each_rank_gets_the_sum_and_the_maximum_of_all():
    def both(number, all_reduce):
        return all_reduce(torch.tensor([number])), all_reduce(
            torch.tensor([number]), operation="max"
        )

    results, sent = student.on_ranks(both, [(1,), (5,), (2,)])
    assert results == [(torch.tensor([8]), torch.tensor([5]))] * 3
    assert sent == [[torch.tensor([n])] * 2 for n in (1, 5, 2)]


def test_a_group_that_would_hang_or_fail_says_why():
    for answer, reason in (
        (lambda rank, reduce: reduce(torch.ones(1)) if rank == 0 else None, "wait forever"),
        (lambda rank, reduce: reduce(torch.ones(1), "mean"), 'expected "sum" or "max"'),
        (lambda rank, reduce: reduce(1.0), "expected a tensor for all_reduce"),
    ):
        with pytest.raises(WrongUse, match=reason):
            student.on_ranks(answer, [(0,), (1,)])


def test_an_answer_cannot_catch_the_wait_for_other_ranks():
    def careful(rank, all_reduce):
        try:
            return all_reduce(torch.tensor([rank + 1.0]))
        except Exception:
            return None

    assert student.on_ranks(careful, [(0,), (1,)])[0] == [torch.tensor([3.0])] * 2
