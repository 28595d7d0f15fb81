"""Simulations by hand, to the iteration; conservation of work; and queueing theory."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.serving.simulator.cost import CostModel
from course_pkg.serving.simulator.jobs import Policy
from course_pkg.serving.simulator.loop import simulate
from course_pkg.serving.simulator.memory import KVMemory
from course_pkg.serving.simulator.mlfq import MLFQ, SkipJoinMLFQ
from course_pkg.serving.simulator.policies import (
    SRPT,
    ContinuousBatching,
    RunToCompletion,
    ShortestPromptFirst,
    StaticBatching,
)
from course_pkg.serving.simulator.statistics import batch_means, bootstrap
from course_pkg.serving.simulator.workload import Request, bimodal, poisson, requests

SECOND = CostModel(base=1.0)  # every iteration takes one second
THREE = [Request(0.0, 5, 3), Request(0.0, 2, 1), Request(0.5, 4, 2)]


def members(result) -> list[list[tuple[int, int]]]:
    return [list(iteration.batch) for iteration in result.trace]


def one_each(cost: CostModel) -> list[Policy]:
    """Every policy that never idles while a request waits, one request at a time."""
    return [
        RunToCompletion(),
        StaticBatching(1),
        ContinuousBatching(1, token_budget=3),
        ShortestPromptFirst(1),
        SRPT(1, cost),
        MLFQ(1, 1.0, levels=3),
        MLFQ(1, 1.0, levels=3, starvation=4.0),
        SkipJoinMLFQ(1, 1.0, cost=cost, starvation=9.0),
    ]


# ---------------------------------------------------------------- by hand


def test_one_by_one():
    result = simulate(THREE, RunToCompletion(), SECOND)
    assert result.first_token.tolist() == [1, 4, 5]
    assert result.finished.tolist() == [3, 4, 6]


def test_continuous_batching_fills_a_place_at_the_next_iteration():
    result = simulate(THREE, ContinuousBatching(max_batch=2), SECOND, trace=True)
    assert members(result) == [[(0, 5), (1, 2)], [(0, 1), (2, 4)], [(0, 1), (2, 1)]]
    assert result.first_token.tolist() == [1, 1, 2]
    assert result.finished.tolist() == [3, 1, 3]
    assert result.iterations == 3 and result.busy == 3


def test_a_static_batch_stays_together_and_is_padded():
    result = simulate(THREE, StaticBatching(2), SECOND, trace=True)
    assert members(result)[:3] == [[(0, 5), (1, 5)], [(0, 1), (1, 1)], [(0, 1), (1, 1)]]
    assert members(result)[3:] == [[(2, 4)], [(2, 1)]]
    assert result.last_token.tolist() == [3, 1, 5]  # computed at 1, but returned at 3
    assert result.finished.tolist() == [3, 3, 5]


def test_padding_costs_time():
    cost = CostModel(prompt=1.0, sequences=0.5, context=0.01)
    result = simulate(THREE[:2], StaticBatching(2), cost)
    # 2 rows of 5; then 2 rows of which each sees 6 keys, and then 7
    assert result.busy == pytest.approx(10 + (1 + 0.12) + (1 + 0.14))


def test_dynamic_batching_waits_for_a_full_batch_or_for_its_limit():
    late = [Request(1.0, 1, 1), Request(2.0, 1, 1), Request(3.0, 1, 1)]
    waits = simulate(late, StaticBatching(2, max_wait=5.0), SECOND, trace=True)
    assert [it.start for it in waits.trace] == [2.0, 8.0]  # full; the third has waited 5 s
    assert waits.finished.tolist() == [3, 3, 9]


def test_a_token_budget_reads_prompts_in_chunks_beside_decoding():
    two = [Request(0.0, 3, 3), Request(0.0, 6, 1)]
    result = simulate(two, ContinuousBatching(2, token_budget=4), SECOND, trace=True)
    assert members(result) == [[(0, 3), (1, 1)], [(0, 1), (1, 3)], [(0, 1), (1, 2)]]
    assert result.first_token.tolist() == [1, 3]


def test_a_prompt_that_fills_the_budget_leaves_none_for_the_next():
    two = [Request(0.0, 5, 1), Request(0.0, 2, 1)]
    result = simulate(two, ContinuousBatching(2, token_budget=4), SECOND, trace=True)
    assert members(result) == [[(0, 4)], [(0, 1), (1, 2)]]


def test_chunks_of_a_prompt_see_as_many_pairs_as_the_whole():
    cost = CostModel(pairs=1.0)
    whole = simulate([Request(0.0, 10, 1)], ContinuousBatching(1), cost)
    parts = simulate([Request(0.0, 10, 1)], ContinuousBatching(1, token_budget=3), cost)
    assert whole.busy == parts.busy == 55
    assert (whole.iterations, parts.iterations) == (1, 4)


def test_the_shortest_prompt_joins_first_but_interrupts_nobody():
    # 2 tokens; then, at 1 s, 4 before 5
    assert simulate(THREE, ShortestPromptFirst(1), SECOND).finished.tolist() == [6, 1, 3]
    late = [Request(0.0, 9, 3), Request(0.5, 1, 1)]
    assert simulate(late, ShortestPromptFirst(1), SECOND).finished.tolist() == [3, 4]
    equal = [Request(0.0, 2, 1)] * 3
    assert simulate(equal, ShortestPromptFirst(1), SECOND).finished.tolist() == [1, 2, 3]


def test_srpt_interrupts_for_a_shorter_rest():
    result = simulate([Request(0.0, 1, 5), Request(1.5, 1, 2)], SRPT(1, SECOND), SECOND, trace=True)
    # at 2 s three iterations of request 0 are left, and two of request 1
    assert [batch[0][0] for batch in members(result)] == [0, 0, 1, 1, 0, 0, 0]
    assert result.finished.tolist() == [7, 4]


def test_an_idle_server_waits_for_the_next_request():
    result = simulate([Request(2.0, 1, 1), Request(9.5, 1, 1)], RunToCompletion(), SECOND)
    assert result.finished.tolist() == [3.0, 10.5]
    assert result.busy == 2.0


def test_the_time_of_an_iteration_is_that_of_the_cost_model():
    cost = CostModel(base=0.1, prompt=1e-2, pairs=1e-4, sequences=0.02, context=1e-3)
    result = simulate(THREE[:2], ContinuousBatching(2), cost, trace=True)
    lengths = [it.end - it.start for it in result.trace]
    first = 0.1 + 1e-2 * 7 + 1e-4 * (15 + 3)
    assert lengths == pytest.approx([first, 0.1 + 0.02 + 6e-3, 0.1 + 0.02 + 7e-3])


# ---------------------------------------------------------------- for any workload

REQUESTS = st.lists(
    st.builds(
        Request,
        st.integers(0, 30).map(float),
        st.integers(1, 6),
        st.integers(1, 8),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(REQUESTS)
def test_whatever_the_order_the_work_is_done_in_the_same_time(given_requests):
    """One at a time, no policy creates or destroys work, or idles while there is some."""
    cost = CostModel(prompt=0.5, sequences=0.25)
    ends, work = set(), None
    for policy in one_each(cost):
        result = simulate(given_requests, policy, cost)
        assert np.all(result.finished >= result.arrival + result.alone)
        assert np.all(result.last_token == result.finished)
        work = result.alone.sum()
        assert result.busy == work
        ends.add(result.finished.max())
    assert len(ends) == 1


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(1, 4))
def test_every_request_gets_exactly_its_tokens(given_requests, size):
    policies = [
        ContinuousBatching(size),
        ContinuousBatching(size, token_budget=size + 1),
        ShortestPromptFirst(size),
        StaticBatching(size, max_wait=2.0),
        SRPT(size, SECOND),
        MLFQ(size, 1.0, starvation=5.0),
        SkipJoinMLFQ(size, 0.5, cost=SECOND),
    ]
    for policy in policies:
        result = simulate(given_requests, policy, SECOND, trace=True)
        computed = np.zeros(len(given_requests), int)
        for iteration in result.trace:
            assert len(iteration.batch) <= size
            for index, tokens in iteration.batch:
                assert iteration.start >= result.arrival[index]
                computed[index] += tokens
        if not isinstance(policy, StaticBatching):  # padding adds to it
            # the last token is never fed back
            assert computed.tolist() == [r.prompt + r.output - 1 for r in given_requests]
        assert np.all(result.arrival < result.first_token)
        assert np.all(result.first_token <= result.last_token)
        assert np.all(result.last_token <= result.finished)


@settings(max_examples=60, deadline=None)
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
    for one in dataclasses.fields(first):
        np.testing.assert_array_equal(getattr(first, one.name), getattr(repeated, one.name))


# ---------------------------------------------------------------- queueing theory

RATE = 0.7
SERVICES = {  # service times in thousandths of a second
    "M/D/1": lambda g, n: np.full(n, 1000),
    "M/M/1": lambda g, n: np.maximum(1, np.rint(g.exponential(1000, n))).astype(int),
    "M/G/1": lambda g, n: bimodal(500, 5500, 0.1, n, g),
}


@pytest.mark.parametrize("name", SERVICES)
def test_a_queue_with_batch_one_follows_pollaczek_and_khinchine(name):
    """The mean wait is rate · E[S²] / (2 (1 − rate · E[S])): 7/6, 7/3 and 3.79 s here."""
    generator, number = np.random.default_rng(7), 120_000
    service = SERVICES[name](generator, number)
    served = requests(poisson(RATE, number, generator), service, np.ones(number, int))
    result = simulate(served, RunToCompletion(), CostModel(prompt=1e-3))
    squares = {"M/D/1": 1.0, "M/M/1": 2.0, "M/G/1": 0.9 * 0.25 + 0.1 * 5.5**2}[name]
    expected = RATE * squares / (2 * (1 - RATE))
    waits = (result.finished - result.arrival - result.alone)[2000:]
    interval = bootstrap(batch_means(waits, 40), level=0.999)
    assert interval.low < expected < interval.high
    assert interval.mean == pytest.approx(expected, rel=0.08)


def test_turns_of_one_token_approach_processor_sharing():
    """M/G/1 with processor sharing: a job of x seconds takes x / (1 − load), whatever the others.

    First come, first served, short jobs would wait as long as long ones.
    """
    generator, number = np.random.default_rng(3), 12_000
    outputs = bimodal(10, 100, 0.1, number, generator)  # tokens of 1/19 s: 1 s on average
    served = requests(poisson(RATE, number, generator), np.ones(number, int), outputs)
    cost = CostModel(base=1 / 19)
    turns = simulate(served, MLFQ(1, 1 / 19, levels=1), cost)
    took = turns.finished - turns.arrival
    for tokens in (10, 100):
        expected = tokens / 19 / (1 - RATE)
        assert took[outputs == tokens].mean() == pytest.approx(expected, rel=0.1)


# ---------------------------------------------------------------- errors


class Idle(Policy):
    """It never runs anything."""

    def add(self, job):
        pass

    def next_batch(self, now):
        return []


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: simulate([], RunToCompletion(), SECOND), ValueError, "no requests"),
        (lambda: simulate(THREE, Idle(), SECOND), RuntimeError, "Idle runs nothing, but 3 jobs"),
        (
            lambda: simulate(THREE, StaticBatching(2), SECOND, memory=KVMemory(99, 1.0)),
            ValueError,
            r"StaticBatching doesn't preempt, so memory cannot be limited: leave out",
        ),
        (
            lambda: simulate(THREE, ContinuousBatching(2), SECOND, memory=KVMemory(7, 1.0)),
            ValueError,
            r"request 0 needs 8 tokens of KV memory, and the capacity is 7: enlarge it",
        ),
        (lambda: ContinuousBatching(0), ValueError, "max_batch is 0: give an integer"),
        (lambda: ContinuousBatching(8, 7), ValueError, "token_budget is 7, and max_batch 8"),
        (lambda: StaticBatching(1.5), ValueError, r"size is 1\.5: give an integer"),
        (lambda: StaticBatching(1, float("inf")), ValueError, "max_wait is inf: give finite"),
        (lambda: SRPT(0, SECOND), ValueError, "max_batch is 0"),
        (lambda: MLFQ(0, 1.0), ValueError, "max_batch is 0, levels 10: give at least 1"),
        (lambda: MLFQ(1, 0.0), ValueError, r"quantum is 0\.0, starvation inf: give positive"),
    ],
)
def test_what_cannot_be_simulated_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
