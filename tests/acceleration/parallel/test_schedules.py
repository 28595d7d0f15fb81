"""Schedules of a pipeline: orders, bubbles and activations in flight, without processes."""

import itertools
from types import SimpleNamespace

import pytest
from torch.distributed.pipelining import schedules as torchs

from course_pkg.acceleration.parallel.schedules import (
    Action,
    Receive,
    Schedule,
    Send,
    check,
    gpipe,
    interleaved,
    one_f_one_b,
    program,
    zero_bubble,
)
from course_pkg.acceleration.parallel.timeline import bubble_fraction, simulate
from tests.tables import each_row

SIZES = list(itertools.product((1, 2, 3, 4, 5), (1, 2, 3, 4, 6, 8)))
TIMES = [(1, 1), (1, 2), (2, 1), (3, 5)]  # of F and B
CHART = """
rank 0  F0 F1 F2 F3 .  .  .  B0 F4 B1 F5 B2 F6 B3 F7 B4 .  B5 .  B6 .  B7
rank 1  .  F0 F1 F2 .  .  B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 .  B6 .  B7 .
rank 2  .  .  F0 F1 .  B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 .  B7 .  .
rank 3  .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 .  .  ."""
UNIT = {"F": 1, "B": 1, "I": 1, "W": 1}


def test_four_ranks_and_eight_microbatches_worked_by_hand():
    timeline = simulate(one_f_one_b(4, 8), UNIT)
    assert timeline.chart() == CHART.strip()
    assert timeline.bubble == pytest.approx(3 / 11)  # 4 · 22 cells, of which 24 are dots


@each_row("make", [gpipe, one_f_one_b])
@each_row(("forward", "backward"), TIMES)
def test_the_bubble_is_that_of_the_formula_for_any_ratio_of_forward_and_backward(
    make, forward, backward
):
    for p, m in SIZES:
        timeline = simulate(make(p, m), {"F": forward, "B": backward})
        assert timeline.bubble == pytest.approx(bubble_fraction(p, m)), (p, m)


@each_row("chunks", [1, 2, 3])
@each_row(("forward", "backward"), TIMES)
def test_the_interleaved_bubble_is_that_of_the_formula(chunks, forward, backward):
    for p, m in SIZES:
        if m % p == 0:
            timeline = simulate(interleaved(p, m, chunks), {"F": forward, "B": backward})
            assert timeline.bubble == pytest.approx(bubble_fraction(p, m, chunks)), (p, m)


@each_row("times", [(1, 1, 1), (2, 2, 1), (1, 2, 1), (2, 1, 1), (3, 2, 0.5)])
def test_the_zero_bubble_is_that_of_the_formula_and_smaller(times):
    forward, inputs, weights = times
    for p, m in SIZES:
        timeline = simulate(zero_bubble(p, m), {"F": forward, "I": inputs, "W": weights})
        if m >= p:
            idle = (p - 1) * (forward + inputs - weights)  # Qi et al. 2023, table 2
            work = m * (forward + inputs + weights)
            assert timeline.bubble == pytest.approx(idle / (work + idle)), (p, m)
        if p > 1:
            assert timeline.bubble < bubble_fraction(p, m), (p, m)


def test_a_bubble_is_left_although_weights_take_longer_than_inputs():
    timeline = simulate(zero_bubble(4, 8), {"F": 1, "I": 1, "W": 2})
    assert 0 < timeline.bubble < bubble_fraction(4, 8)


def test_activations_in_flight_are_those_of_the_formulas():
    for p, m in SIZES:
        for rank in range(p):
            assert gpipe(p, m).in_flight(rank) == m
            assert one_f_one_b(p, m).in_flight(rank) == min(p - rank, m)
            assert zero_bubble(p, m).in_flight(rank) == min(p, m)
            for v in (1, 2, 3):
                if m % p == 0:
                    most = min(2 * (p - rank - 1) + (v - 1) * p + 1, m * v)
                    assert interleaved(p, m, v).in_flight(rank) == most


def _torchs_actions(kind, p, m, chunks=1):
    """torch's own order, as text; its classes want processes, so only their state is made."""
    schedule = SimpleNamespace(
        _num_stages=p,
        _n_microbatches=m,
        pp_group_size=p,
        n_local_stages=chunks,
        microbatches_per_round=p,
    )
    if kind in (torchs.ScheduleGPipe, torchs.Schedule1F1B):
        orders = kind._get_pipeline_order(schedule)
    else:
        orders = {r: kind._calculate_single_rank_operations(schedule, r) for r in range(p)}
    actions = []
    for rank in range(p):
        passes = [a for a in orders[rank] if a and a.computation_type.value in ("F", "B", "I", "W")]
        actions.append(
            tuple(
                Action(
                    a.computation_type.value,
                    a.microbatch_index,
                    (a.stage_index - rank) // p,
                )
                for a in passes
            )
        )
    return tuple(actions)


def test_the_orders_are_torchs():
    for p, m in SIZES:
        assert gpipe(p, m).actions == _torchs_actions(torchs.ScheduleGPipe, p, m)
        if m >= p:  # otherwise torch lists passes of microbatches that don't exist
            theirs = _torchs_actions(torchs.Schedule1F1B, p, m)
            # torch 2.13 lists (but doesn't run) the last rank's F with numbers from 1 instead of 0
            last = tuple(Action(k, i - 1 if k == "F" else i, c) for k, i, c in theirs[-1])
            assert one_f_one_b(p, m).actions == (*theirs[:-1], last)
        if m % p == 0:
            for v in (1, 2, 3):
                theirs = _torchs_actions(torchs.ScheduleInterleaved1F1B, p, m, v)
                assert interleaved(p, m, v).actions == theirs
            theirs = _torchs_actions(torchs.ScheduleInterleavedZeroBubble, p, m)
            assert zero_bubble(p, m).actions == theirs


def test_both_ends_of_every_message_come_in_one_order():
    """Merging the ranks' messages in the order of each never leads to a circle."""
    schedules = [gpipe(4, 6), one_f_one_b(3, 5), zero_bubble(4, 3)]
    for schedule in [*schedules, interleaved(2, 4, 3), interleaved(4, 8, 2)]:
        queues = [
            [step for step in steps if isinstance(step, Send | Receive)]
            for steps in program(schedule)
        ]
        while any(queues):
            both = [
                (rank, queue[0].to)
                for rank, queue in enumerate(queues)
                if queue
                and isinstance(queue[0], Send)
                and queues[queue[0].to][:1] == [Receive(queue[0].value, rank)]
            ]
            assert both, "every rank waits for another message"
            sender, receiver = both[0]
            del queues[sender][0], queues[receiver][0]


def test_a_rank_without_neighbors_sends_nothing():
    steps = program(interleaved(1, 2, 3))
    assert all(isinstance(step, Action) for step in steps[0])


def _changed(schedule, rank, change):
    actions = [list(own) for own in schedule.actions]
    change(actions[rank])
    return Schedule("changed", schedule.microbatches, 1, tuple(map(tuple, actions)))


@each_row(
    ("change", "message"),
    [
        (lambda own: own.pop(), "rank 1 does F for microbatch 2, chunk 0: expected F and B"),
        (lambda own: own.append(own[0]), "rank 1 does B, F, F for microbatch 0"),
        (lambda own: own.append(Action("F", 3)), "rank 1 has F3, which isn't of this schedule"),
        (lambda own: own.append(Action("X", 0)), "rank 1 has X0, which isn't of this schedule"),
        (lambda own: own.reverse(), "deadlock: rank 0 before B0, rank 1 before B2"),
    ],
)
def test_an_invalid_schedule_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        check(_changed(one_f_one_b(2, 3), 1, change))


def test_weights_before_inputs_are_a_deadlock():
    def swap(own):
        at = own.index(Action("W", 0))
        own.insert(0, own.pop(at))

    with pytest.raises(ValueError, match=r"deadlock: .*rank 1 before W0"):
        check(_changed(zero_bubble(2, 3), 1, swap))


@each_row(
    ("call", "message"),
    [
        (lambda: interleaved(4, 6, 2), "6 can't be divided: use 4 or 8 microbatches, or 1F1B"),
        (lambda: interleaved(4, 3, 2), "3 can't be divided: use 4 microbatches, or 1F1B"),
        (lambda: gpipe(0, 4), "ranks must be an integer of at least 1, got 0"),
        (lambda: one_f_one_b(2, 0), "microbatches must be an integer of at least 1, got 0"),
        (lambda: zero_bubble(2, 2.5), "microbatches must be an integer of at least 1, got 2.5"),
        (lambda: interleaved(2, 2, 0), "chunks must be an integer of at least 1, got 0"),
        (lambda: simulate(zero_bubble(2, 2), {"F": 1, "B": 2}), "lack I, W"),
        (lambda: simulate(gpipe(2, 2), {"F": 1, "B": 0}), "duration of B must be above 0"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
