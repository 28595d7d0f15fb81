"""`parallelism`: its right values, and the ranks that its functions are run on."""

from random import Random

import pytest
import torch
from torch.nn import functional as F

from course_pkg.grading.checks.parallelism import cases, ring, student
from course_pkg.grading.contract.calling import WrongUse
from course_pkg.parallel.collectives import ring_bytes
from tests.exercises.assignments import patched, points_lost


@pytest.mark.parametrize(("ranks", "length"), [(2, 4), (3, 7), (4, 12), (5, 3)])
def test_the_ring_ends_with_sums_and_its_first_half_with_one_on_each_rank(ranks, length):
    tensors = [torch.randn(length, dtype=torch.float64) for _ in range(ranks)]
    states, sent = ring.all_reduce(tensors)
    total = sum(tensors)
    assert len(states) == 2 * (ranks - 1)
    for rank, tensor in enumerate(states[ranks - 2]):
        own = tensor.tensor_split(ranks)[rank]
        torch.testing.assert_close(own, total.tensor_split(ranks)[rank])
    for tensor in states[-1]:
        torch.testing.assert_close(tensor, total)
    assert sum(sent) == ranks * ring_bytes("all_reduce", ranks, 8 * length)


@pytest.mark.parametrize(
    ("stage", "whole", "divided"), [(0, 16, 0), (1, 4, 12), (2, 2, 14), (3, 0, 16)]
)
def test_bytes_of_zero_are_those_of_the_paper(stage, whole, divided):
    inputs = {"parameters": 7_500_000_000, "ranks": 64, "stage": stage, "sizes": [2, 2, 12]}
    assert cases.zero_bytes_expected(inputs) / 7.5e9 == pytest.approx(whole + divided / 64)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 3), (4, 8), (4, 2), (3, 3)])
def test_1f1b_has_the_bubble_and_the_activations_of_the_formulas(ranks, microbatches):
    sizes = {"ranks": ranks, "microbatches": microbatches}
    orders = [cases.schedule_expected({"rank": rank, **sizes}) for rank in range(ranks)]
    inputs = {"orders": orders, "forward": 1.0, "backward": 2.0}
    seconds, bubble, in_flight = cases.simulate_expected(inputs)
    assert seconds == 3 * (microbatches + ranks - 1)
    assert bubble == pytest.approx((ranks - 1) / (microbatches + ranks - 1))
    assert in_flight == [min(ranks - rank, microbatches) for rank in range(ranks)]


@pytest.mark.parametrize("seed", range(20))
def test_schedules_that_are_drawn_can_be_completed(seed):
    orders = cases.simulate_seconds(Random(seed), 2)["orders"]
    done = set()
    left = [list(order) for order in orders]
    for _ in range(sum(map(len, orders))):
        for rank, actions in enumerate(left):
            before = actions and (rank - 1 if actions[0][0] == "F" else rank + 1)
            if actions and (before in (-1, len(orders)) or (before, *actions[0]) in done):
                done.add((rank, *actions.pop(0)))
    assert not any(left)


def test_each_rank_gets_the_sum_and_the_maximum_of_all():
    def both(number, all_reduce):
        return all_reduce(torch.tensor([number])), all_reduce(torch.tensor([number]), "max")

    results, sent = student.on_ranks(both, [(1,), (5,), (2,)])
    assert results == [(torch.tensor([8]), torch.tensor([5]))] * 3
    assert sent == [[torch.tensor([n])] * 2 for n in (1, 5, 2)]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda rank, reduce: reduce(torch.ones(1)) if rank == 0 else None, "wait forever"),
        (lambda rank, reduce: reduce(torch.ones(1), "mean"), 'expected "sum" or "max"'),
        (lambda rank, reduce: reduce(1.0), "expected a tensor for all_reduce"),
    ],
)
def test_a_group_that_would_hang_or_fail_says_why(answer, reason):
    with pytest.raises(WrongUse, match=reason):
        student.on_ranks(answer, [(0,), (1,)])


def test_an_answer_cannot_catch_the_wait_for_other_ranks():
    def careful(rank, all_reduce):
        try:
            return all_reduce(torch.tensor([rank + 1.0]))
        except Exception:
            return None

    assert student.on_ranks(careful, [(0,), (1,)])[0] == [torch.tensor([3.0])] * 2


@pytest.mark.parametrize(
    ("question", "old", "new"),
    [
        ("mlp", "    gate, up =", "    x = x.mul_(2) / 2\n    gate, up ="),
        ("cross-entropy", "    own =", "    logits = logits.mul_(2) / 2\n    own ="),
    ],
)
def test_a_changed_argument_costs_two_points_and_no_more(question, old, new):
    assert points_lost("parallelism", question, patched("parallelism", question, old, new)) == 2


def test_all_logits_may_not_be_sent():
    def gathered(logits, labels, first, all_reduce):
        end = first + logits.shape[1]
        size = int(all_reduce(torch.tensor([end]), "max"))
        whole = all_reduce(F.pad(logits, (first, size - end)), "sum").requires_grad_()
        count = (labels != -100).sum().clamp(min=1)
        loss = F.cross_entropy(whole, labels, reduction="sum") / count
        return loss, torch.autograd.grad(loss, whole)[0][:, first:end]

    assert points_lost("parallelism", "cross-entropy", gathered) == 1


def test_the_formula_of_1f1b_is_not_enough_for_any_schedule():
    def formula(orders, forward, backward):
        ranks = len(orders)
        microbatches = len(orders[0]) // 2
        seconds = (microbatches + ranks - 1) * (forward + backward)
        in_flight = [min(ranks - rank, microbatches) for rank in range(ranks)]
        return seconds, (ranks - 1) / (microbatches + ranks - 1), in_flight

    assert points_lost("parallelism", "simulate", formula) == 3
