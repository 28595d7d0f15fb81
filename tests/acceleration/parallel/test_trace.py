"""Measured timelines: order and states, which a busy machine can't change."""

import itertools

import pytest

from course_pkg.acceleration.parallel.schedules import (
    gives,
    gpipe,
    interleaved,
    needs,
    zero_bubble,
)
from course_pkg.acceleration.parallel.timeline import simulate
from course_pkg.acceleration.parallel.trace import measure
from tests.tables import each_row

DURATIONS = {"F": 0.002, "B": 0.004, "I": 0.002, "W": 0.002}


@each_row(
    "schedule",
    [interleaved(2, 4, 2), zero_bubble(3, 4)],
)
def test_real_ranks_follow_the_schedule(schedule):
    timeline = measure(schedule, DURATIONS)
    assert timeline.ranks == schedule.ranks
    ended = {}
    for event in timeline.events:
        for value in gives(schedule, event.rank, event.action):
            ended[value] = event.end
    for rank in range(schedule.ranks):
        own = [event for event in timeline.events if event.rank == rank]
        assert tuple(event.action for event in own) == schedule.actions[rank]
        for before, after in itertools.pairwise(own):
            assert before.end <= after.start
        for event in own:  # one clock for all: nothing starts before its inputs are there
            assert event.end - event.start >= DURATIONS[event.action.kind]
            for value in needs(schedule, rank, event.action):
                assert ended[value] <= event.start
    assert timeline.makespan >= simulate(schedule, DURATIONS).makespan
    assert 0 < timeline.bubble < 1


@each_row(
    ("durations", "message"),
    [({"F": 0.01}, "lack B"), ({"F": 0.01, "B": -1}, "duration of B must be above 0")],
)
def test_bad_durations_are_refused_before_anything_starts(durations, message):
    with pytest.raises(ValueError, match=message):
        measure(gpipe(2, 2), durations)
