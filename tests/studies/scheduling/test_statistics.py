"""Figures of a simulation, by hand, and intervals."""

import math

import numpy as np
import pytest

from course_pkg.studies.scheduling.iteration_cost import CostModel
from course_pkg.studies.scheduling.policies import ContinuousBatching, RunToCompletion
from course_pkg.studies.scheduling.simulation import (
    bootstrap,
    goodput,
    jain,
    per_token,
    simulate,
    summarize,
)
from course_pkg.studies.scheduling.workload import SimulatedRequest
from tests.refusals import require_refusals
from tests.tables import each_row

# One after the other: 1–5 s, 5–6 s and 10–12 s.
THREE = [SimulatedRequest(1.0, 9, 4), SimulatedRequest(2.0, 9, 1), SimulatedRequest(10.0, 9, 2)]
RESULT = simulate(THREE, RunToCompletion(), CostModel(base=1.0))


def test_a_summary_by_hand():
    summary = summarize(RESULT)
    assert summary.completion.mean == (4 + 4 + 2) / 3
    assert summary.normalized.mean == (4 / 4 + 4 / 1 + 2 / 2) / 3
    assert summary.first_token.mean == (1 + 4 + 1) / 3
    assert summary.per_token.mean == 1.0  # of two requests: the other has one token
    assert summary.throughput == 7 / 11  # tokens, from 1 s to 12 s
    assert summary.requests == 3 / 11
    assert summary.busy == 7 / 11
    # alone / completion: 1, 1/4, 1
    assert summary.fairness == pytest.approx(2.25**2 / (3 * 2.0625))


def test_an_answer_of_one_token_has_no_time_per_token():
    assert per_token(RESULT)[0] == 1.0 and math.isnan(per_token(RESULT)[1])
    alone = simulate([SimulatedRequest(0.0, 1, 1)], ContinuousBatching(1), CostModel(base=1.0))
    assert math.isnan(summarize(alone).per_token.p99)


@each_row(
    ("targets", "met"),
    [
        ({"completion": 4.0}, 3),
        ({"completion": 3.9}, 1),
        ({"normalized": 1.0}, 2),
        ({"first_token": 1.0}, 2),
        ({"between_tokens": 1.0}, 3),
        ({"between_tokens": 0.9}, 1),
        ({"completion": 3.0, "first_token": 1.0}, 1),
    ],
)
def test_goodput_counts_requests_that_meet_every_target(targets, met):
    assert goodput(RESULT, **targets) == met / 11


@each_row(("values", "index"), [([3, 3, 3], 1.0), ([1, 0, 0, 0], 0.25), ([1, 2, 3], 36 / 42)])
def test_jains_index(values, index):
    assert jain(np.array(values)) == pytest.approx(index)


def test_what_has_no_figure_is_refused():
    too_small = "give values of at least 0, one of them positive"
    require_refusals(
        (lambda: goodput(RESULT), "there is no target: give at least one"),
        (lambda: bootstrap([1.0] * 4), "got 4 values: give at least 5"),
        *((lambda v=v: jain(np.array(v)), too_small) for v in ([], [0.0, 0.0], [1.0, -1.0])),
    )


def test_the_interval_repeats_and_widens_with_its_level():
    values = np.random.default_rng(1).exponential(size=30)
    assert bootstrap(values) == bootstrap(values)
    wide = bootstrap(values, level=0.99)
    narrow = bootstrap(values, level=0.8)
    assert wide.low < narrow.low < narrow.mean < narrow.high < wide.high
