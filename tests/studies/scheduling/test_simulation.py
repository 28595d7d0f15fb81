"""Simulations by hand, to the iteration; conservation of work; queueing theory; their figures."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.studies.scheduling.iteration_cost import CostModel
from course_pkg.studies.scheduling.kv_memory import KVMemory
from course_pkg.studies.scheduling.mlfq import MLFQ, SkipJoinMLFQ
from course_pkg.studies.scheduling.policies import (
    SRPT,
    ContinuousBatching,
    FairClients,
    Policy,
    RunToCompletion,
    ShortestFirst,
    StaticBatching,
)
from course_pkg.studies.scheduling.simulation import goodput, jain, per_token, simulate, summarize
from course_pkg.studies.scheduling.workload import SimulatedRequest
from tests.refusals import require_refusals
from tests.tables import each_row

SECOND = CostModel(base=1.0)  # every iteration takes one second
THREE = [SimulatedRequest(0.0, 5, 3), SimulatedRequest(0.0, 2, 1), SimulatedRequest(0.5, 4, 2)]


def one_each(cost: CostModel) -> list[Policy]:
    """Every policy that never idles while a request waits, one request at a time."""
    return [
        RunToCompletion(),
        StaticBatching(1),
        ContinuousBatching(1, token_budget=3),
        ShortestFirst(1),
        SRPT(1, cost),
        MLFQ(1, 1.0, levels=3),
        MLFQ(1, 1.0, levels=3, starvation=4.0),
        SkipJoinMLFQ(1, 1.0, cost=cost, starvation=9.0),
    ]


# ---------------------------------------------------------------- by hand


def served(*rows):
    return [SimulatedRequest(float(arrival), prompt, output) for arrival, prompt, output in rows]


@each_row(
    ("given", "policy", "batches", "finished"),
    [
        (THREE, RunToCompletion(), "A5 A1 A1 B2 C4 C1", [3, 4, 6]),
        # A place is filled at the next iteration.
        (THREE, ContinuousBatching(2), "A5B2 A1C4 A1C1", [3, 1, 3]),
        # A static batch stays together, padded: B's token is computed at 1, and returned at 3.
        (THREE, StaticBatching(2), "A5B5 A1B1 A1B1 C4 C1", [3, 3, 5]),
        # A dynamic one waits until it is full, or until its first request has waited 5 s.
        (served(*((t, 1, 1) for t in (1, 2, 3))), StaticBatching(2, 5.0), "A1B1 C1", [3, 3, 9]),
        # Prompts are read in chunks beside decoding; one that fills the budget leaves nothing.
        (served((0, 3, 3), (0, 6, 1)), ContinuousBatching(2, 4), "A3B1 A1B3 A1B2", [3, 3]),
        (served((0, 5, 1), (0, 2, 1)), ContinuousBatching(2, 4), "A4 A1B2", [2, 2]),
        # The shortest prompt joins first, but interrupts nobody; equal ones come in their order.
        (THREE, ShortestFirst(1), "B2 C4 C1 A5 A1 A1", [6, 1, 3]),
        (served((0, 9, 3), (0.5, 1, 1)), ShortestFirst(1), "A9 A1 A1 B1", [3, 4]),
        (served(*[(0, 2, 1)] * 3), ShortestFirst(1), "A2 B2 C2", [1, 2, 3]),
        # SRPT interrupts for a shorter rest: at 2 s three iterations of A are left, and two of B.
        (served((0, 1, 5), (1.5, 1, 2)), SRPT(1, SECOND), "A1 A1 B1 B1 A1 A1 A1", [7, 4]),
        # An idle server waits for the next request.
        (served((2, 1, 1), (9.5, 1, 1)), RunToCompletion(), "A1 B1", [3.0, 10.5]),
    ],
)
def test_policies_by_hand(given, policy, batches, finished):
    """batches: who computes how many tokens in each iteration, which takes a second."""
    result = simulate(given, policy, SECOND, trace=True)
    shown = ["".join(f"{'ABC'[i]}{n}" for i, n in iteration.batch) for iteration in result.trace]
    assert " ".join(shown) == batches and result.finished.tolist() == finished
    assert result.iterations == result.busy == len(result.trace)
    ends = {i: [it.end for it in result.trace if i in dict(it.batch)] for i in range(len(given))}
    if not isinstance(policy, StaticBatching):
        assert result.last_token.tolist() == [ends[i][-1] for i in ends]


def test_the_first_and_the_last_token_and_the_time_of_an_iteration():
    result = simulate(THREE, StaticBatching(2), SECOND)
    assert result.last_token.tolist() == [3, 1, 5] and result.first_token.tolist() == [1, 1, 4]
    result = simulate(served((0, 3, 3), (0, 6, 1)), ContinuousBatching(2, token_budget=4), SECOND)
    assert result.first_token.tolist() == [1, 3]
    cost = CostModel(base=0.1, prompt=1e-2, pairs=1e-4, sequences=0.02, context=1e-3)
    result = simulate(THREE[:2], ContinuousBatching(2), cost, trace=True)
    lengths = [it.end - it.start for it in result.trace]
    first = 0.1 + 1e-2 * 7 + 1e-4 * (15 + 3)
    assert lengths == pytest.approx([first, 0.1 + 0.02 + 6e-3, 0.1 + 0.02 + 7e-3])


def test_chunks_of_a_prompt_see_as_many_pairs_as_the_whole_and_padding_costs_time():
    cost = CostModel(pairs=1.0)
    whole = simulate([SimulatedRequest(0.0, 10, 1)], ContinuousBatching(1), cost)
    parts = simulate([SimulatedRequest(0.0, 10, 1)], ContinuousBatching(1, token_budget=3), cost)
    assert whole.busy == parts.busy == 55
    assert (whole.iterations, parts.iterations) == (1, 4)
    cost = CostModel(prompt=1.0, sequences=0.5, context=0.01)
    result = simulate(THREE[:2], StaticBatching(2), cost)
    # 2 rows of 5; then 2 rows of which each sees 6 keys, and then 7
    assert result.busy == pytest.approx(10 + (1 + 0.12) + (1 + 0.14))


# ---------------------------------------------------------------- for any workload

REQUESTS = st.lists(
    st.builds(
        SimulatedRequest, st.integers(0, 30).map(float), st.integers(1, 6), st.integers(1, 8)
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(REQUESTS)
def test_whatever_the_order_the_work_is_done_in_the_same_time(given_requests):
    """One at a time, no policy creates or destroys work, or idles while there is some."""
    cost = CostModel(prompt=0.5, sequences=0.25)
    ends = set()
    work = None
    for policy in one_each(cost):
        result = simulate(given_requests, policy, cost)
        assert np.all(result.finished >= result.arrival + result.alone)
        assert np.all(result.last_token == result.finished)
        work = result.alone.sum()
        assert result.busy == work
        ends.add(result.finished.max())
    assert len(ends) == 1


@settings(max_examples=40, deadline=None)
@given(REQUESTS, st.integers(1, 4))
def test_every_request_gets_exactly_its_tokens(given_requests, size):
    policies = [
        ContinuousBatching(size),
        ContinuousBatching(size, token_budget=size + 1),
        ShortestFirst(size),
        ShortestFirst(size, lambda job: -job.prompt, token_budget=size),
        StaticBatching(size, max_wait=2.0),
        SRPT(size, SECOND),
        SRPT(size, SECOND, token_budget=size),
        MLFQ(size, 1.0, starvation=5.0),
        MLFQ(size, 1.0, token_budget=size),
        SkipJoinMLFQ(size, 0.5, cost=SECOND, token_budget=size + 1),
        FairClients(size, [index % 2 for index in range(len(given_requests))]),
    ]
    for policy in policies:
        result = simulate(given_requests, policy, SECOND, trace=True)
        computed = np.zeros(len(given_requests), int)
        for iteration in result.trace:
            assert len(iteration.batch) <= size
            for index, tokens in iteration.batch:
                assert iteration.start >= result.arrival[index]
                computed[index] += tokens
            budget = getattr(policy, "token_budget", None)
            assert budget is None or sum(tokens for _, tokens in iteration.batch) <= budget
        if not isinstance(policy, StaticBatching):  # padding adds to it
            # the last token is never fed back
            assert computed.tolist() == [r.prompt + r.output - 1 for r in given_requests]
        assert np.all(result.arrival < result.first_token)
        assert np.all(result.first_token <= result.last_token)
        assert np.all(result.last_token <= result.finished)


@settings(max_examples=40, deadline=None)
@given(REQUESTS)
def test_no_policy_has_a_lower_mean_than_srpt(given_requests):
    """Exact here: arrivals and iterations fall on whole seconds, so nothing blocks for a part."""
    sums = [simulate(given_requests, p, SECOND).finished.sum() for p in one_each(SECOND)]
    assert simulate(given_requests, SRPT(1, SECOND), SECOND).finished.sum() == min(sums)


def test_results_come_in_the_order_of_the_requests_and_repeat():
    cost = CostModel(base=0.5, prompt=0.1)
    policy = MLFQ(2, 0.7, starvation=2.0)
    first = simulate(THREE, policy, cost)
    again = simulate(THREE[::-1], policy, cost)  # the same policy object: it was copied
    np.testing.assert_array_equal(again.prompt[::-1], first.prompt)
    repeated = simulate(THREE, policy, cost)
    assert dataclasses.asdict(first) == dataclasses.asdict(repeated)


# ---------------------------------------------------------------- errors


class Idle(RunToCompletion):
    """It never runs anything."""

    def next_batch(self, now):
        return []


def test_a_policy_that_runs_nothing_is_an_error():
    with pytest.raises(RuntimeError, match="Idle runs nothing, but 3 jobs"):
        simulate(THREE, Idle(), SECOND)


def limited(policy, capacity):
    return simulate(THREE, policy, SECOND, memory=KVMemory(capacity, 1.0))


def test_what_cannot_be_simulated_is_refused():
    require_refusals(
        (lambda: simulate([], RunToCompletion(), SECOND), "no requests"),
        (lambda: limited(StaticBatching(2), 99), "StaticBatching doesn't preempt, so memory"),
        (lambda: limited(ContinuousBatching(2), 7), "request 0 needs 8 tokens .* capacity is 7"),
        (lambda: ContinuousBatching(0), "max_batch must be an integer of at least 1"),
        (lambda: ContinuousBatching(8, 7), "token_budget must be an integer of at least 8"),
        (lambda: StaticBatching(1.5), "size must be an integer of at least 1"),
        (lambda: MLFQ(0, 1.0), "max_batch must be an integer of at least 1"),
        (lambda: MLFQ(1, 0.0), "quantum is 0.0, starvation inf: give positive"),
    )


# One after the other: 1–5 s, 5–6 s and 10–12 s.
IN_TURN = [SimulatedRequest(1.0, 9, 4), SimulatedRequest(2.0, 9, 1), SimulatedRequest(10.0, 9, 2)]
RESULT = simulate(IN_TURN, RunToCompletion(), CostModel(base=1.0))


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
        *((lambda v=v: jain(np.array(v)), too_small) for v in ([], [0.0, 0.0], [1.0, -1.0])),
    )
