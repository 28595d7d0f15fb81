"""Feedback queues by hand, when skip-join helps, and when feedback hurts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.studies.scheduling.iteration_cost import CostModel
from course_pkg.studies.scheduling.mlfq import MLFQ, SkipJoinMLFQ
from course_pkg.studies.scheduling.policies import SRPT, Job, RunToCompletion
from course_pkg.studies.scheduling.simulation import simulate
from course_pkg.studies.scheduling.workload import SimulatedRequest, poisson, requests
from tests.tables import each_row

SECOND = CostModel(base=1.0)
TOKENS = CostModel(prompt=1.0, sequences=1.0)  # a second for each token that is computed


def order(result) -> str:
    """Which requests ran in each iteration, as letters."""
    return " ".join("".join("ABCDEFGH"[i] for i, _ in it.batch) for it in result.trace)


# ---------------------------------------------------------------- by hand


@each_row(
    ("served", "policy", "cost", "expected"),
    [
        # A sinks at 1; B is done; C comes at 2 and sinks at 3, behind A; A's two seconds in the
        # second queue end at 5, so C runs; A ends in the third.
        ([(0, 1, 4), (0, 1, 1), (2, 1, 2)], MLFQ(1, 1.0), SECOND, "A B C A A C A"),
        # A job with quantum left keeps its place.
        ([(0, 1, 3), (0, 1, 3)], MLFQ(1, 3.0), SECOND, "A A A B B B"),
        ([(0, 1, 3), (0, 1, 3)], MLFQ(1, 2.0), SECOND, "A A B B A B"),
        # A new job interrupts after the iteration.
        ([(0, 1, 5), (2.5, 1, 1)], MLFQ(1, 1.0), SECOND, "A A A B A A"),
        # The lowest queue is served in turns: quanta of 1 s, then turns of 2 s.
        ([(0, 1, 4), (0, 1, 4)], MLFQ(1, 1.0, levels=2), SECOND, "A B A A B B A B"),
        # A batch is filled from the highest queue down. A and B sink together; C and the new D go
        # first, and C sinks behind them.
        ([(0, 1, 2), (0, 1, 2), (0, 1, 2), (1, 1, 1)], MLFQ(2, 1.0), SECOND, "AB CD AB C"),
        # A and B sink at 1, and have a second left when C takes one of their places.
        ([(0, 1, 4), (0, 1, 4), (2, 1, 1)], MLFQ(2, 1.0), SECOND, "AB AB CA BA B"),
        # A job that comes as another sinks goes before it.
        ([(0, 1, 3), (1, 2, 1)], SkipJoinMLFQ(1, 1.0, cost=TOKENS), TOKENS, "A B A A"),
        # A's prompt is read two tokens at a time, so B interrupts it.
        ([(0, 5, 1), (1.5, 1, 2)], MLFQ(1, 2.0, token_budget=2), SECOND, "A A B B A"),
        # A decodes first; the budget leaves one token of B's prompt, then the other.
        ([(0, 1, 4), (0.5, 2, 1)], MLFQ(2, 9.0, token_budget=2), SECOND, "A AB AB A"),
        # A and B share the budget in the order of the queue, so B gets nothing before A is read.
        ([(0, 4, 1), (0, 2, 1)], MLFQ(2, 9.0, token_budget=2), SECOND, "A A B"),
        # As floats, 0.1 eight times is less than 0.8.
        ([(0, 1, 9), (0, 1, 1)], MLFQ(1, 0.8), CostModel(base=0.1), "A A A A A A A A B A"),
    ],
)
def test_the_order_of_iterations(served, policy, cost, expected):
    coming = [SimulatedRequest(float(arrival), *lengths) for arrival, *lengths in served]
    assert order(simulate(coming, policy, cost, trace=True)) == expected


def test_skip_join_lets_short_prompts_pass_a_long_one():
    three = [SimulatedRequest(0.0, 5, 2), SimulatedRequest(0.0, 1, 1), SimulatedRequest(0.0, 1, 1)]
    first_come = simulate(three, RunToCompletion(), TOKENS)
    plain = simulate(three, MLFQ(1, 1.0), TOKENS, trace=True)
    skip = simulate(three, SkipJoinMLFQ(1, 1.0, cost=TOKENS), TOKENS, trace=True)
    best = simulate(three, SRPT(1, TOKENS), TOKENS)
    # In plain MLFQ, A's five seconds of prompt block B and C, although the quantum is one second.
    assert first_come.finished.tolist() == [6, 7, 8]
    assert order(plain) == "A B C A" and plain.finished.tolist() == [8, 6, 7]
    # A's five seconds fit the fourth queue, of eight.
    assert order(skip) == "B C A A" and skip.finished.tolist() == [8, 1, 2]
    assert best.finished.tolist() == [8, 1, 2]


def test_skip_join_only_changes_where_a_job_starts():
    """If all first iterations fit the first quantum, the two schedules are the same."""
    generator = np.random.default_rng(0)
    outputs = generator.integers(1, 40, 200)
    served = requests(poisson(0.1, 200, generator), np.ones(200, int), outputs)
    plain = simulate(served, MLFQ(2, 1.0), TOKENS, trace=True)
    skip = simulate(served, SkipJoinMLFQ(2, 1.0, cost=TOKENS), TOKENS, trace=True)
    assert plain.trace == skip.trace


@given(st.integers(1, 3000), st.floats(0.01, 1.0))
def test_the_first_queue_that_fits_is_joined(prompt, quantum):
    cost = CostModel(base=0.05, prompt=0.003)
    policy = SkipJoinMLFQ(1, quantum, cost=cost, levels=8)
    level = policy.join(Job(0, 0.0, prompt, 1))
    first = cost.first_iteration(prompt)
    assert level == 7 or quantum * 2**level >= first * (1 - 1e-8)
    assert level == 0 or quantum * 2 ** (level - 1) < first
    policy = SkipJoinMLFQ(1, 0.3, cost=CostModel(base=0.1 + 0.1 + 0.1))  # more than 0.3, as floats
    assert policy.join(Job(0, 0.0, 1, 1)) == 0


# ---------------------------------------------------------------- starvation

STREAM = [SimulatedRequest(0.0, 1, 3)] + [SimulatedRequest(float(t), 1, 1) for t in range(1, 21)]


def test_a_long_job_waits_for_the_end_of_the_stream_unless_it_is_promoted():
    result = simulate(STREAM, MLFQ(1, 1.0, starvation=3.0), SECOND, trace=True)
    # It runs until 1, is promoted at 4, behind the job that came at 4, and runs at 5. It sinks
    # at 6, is promoted at 9, behind those that came at 8 and 9, and runs at 11.
    assert [it.start for it in result.trace if it.batch[0][0] == 0] == [0, 5, 11]
    assert result.finished[0] == 12
    assert simulate(STREAM, MLFQ(1, 1.0), SECOND).finished[0] == 23


def test_of_several_starving_jobs_the_one_that_waits_longest_is_promoted_first():
    a = Job(0, 0.0, prompt=1, output=9)
    b = Job(1, 1.0, prompt=1, output=9)
    policy = MLFQ(1, 1.0, starvation=3.0)
    policy.add(b)
    policy.ran(policy.next_batch(1.0), 1.0, 2.0)  # b waits since 2
    policy.add(a)
    policy.ran(policy.next_batch(2.0), 1.0, 3.0)  # a waits since 3, and came before b
    assert [job.level for job in (a, b)] == [1, 1]
    [(first, *_)] = policy.next_batch(7.0)
    assert first is b and a.level == 0


def test_a_job_that_joined_low_and_never_ran_is_promoted_too():
    long = [SimulatedRequest(0.0, 9, 1)] + [SimulatedRequest(float(t), 1, 1) for t in range(30)]
    skip = SkipJoinMLFQ(1, 1.0, cost=TOKENS)
    assert simulate(long, skip, TOKENS).finished[0] == 39
    skip = SkipJoinMLFQ(1, 1.0, cost=TOKENS, starvation=5.0)
    # promoted at 5, behind the job that comes at 5, which runs first
    assert simulate(long, skip, TOKENS).first_token[0] == 6 + 9


def test_promotion_gives_a_new_quantum_and_costs_the_highest_queue_no_place():
    """Quanta 2 and 4: A uses 2, then 3 of 4, and after its promotion 2 again."""
    served = [SimulatedRequest(0.0, 1, 10)] + [
        SimulatedRequest(float(t), 1, 1) for t in range(5, 20)
    ]
    result = simulate(served, MLFQ(1, 2.0, starvation=3.0), SECOND, trace=True)
    # promoted at 8, behind the job that comes at 8
    starts = [it.start for it in result.trace if it.batch[0][0] == 0]
    assert starts[:8] == [0, 1, 2, 3, 4, 9, 10, starts[7]] and starts[7] > 11
    crowd = [SimulatedRequest(0.0, 1, 1)] * 4 + [SimulatedRequest(2.0, 1, 1)]
    result = simulate(crowd, MLFQ(1, 1.0, starvation=2.0), SECOND)
    assert result.finished.tolist() == [1, 2, 3, 4, 5]


@each_row(("promotion", "last"), [(3.5, [4, 0]), (5.0, [0, 4])])
def test_the_estimate_of_the_next_run_is_that_of_fastserve(promotion, last):
    """Two jobs in queue 1, one in queue 2, two in queue 3; quanta 1, 2, 4 s; batches of 2."""
    policy = MLFQ(2, 1.0, levels=3, starvation=100.0)
    jobs = [Job(i, 0.0, 1, 9) for i in range(5)]
    for job, level in zip(jobs, (2, 0, 1, 0, 2), strict=True):
        job.level = level
        policy.queues[level][job.index] = job
    # Queue 2 waits until two jobs have used 1 s: 2/2. Queue 3 waits until these have used 1 + 2 s
    # and another 2 s: (2 · 3 + 2)/2 = 4. The last job may be promoted sooner than that.
    jobs[4].waits_since = 50 - 100 + promotion
    assert [job.index for job in policy.waiting(now=50.0)] == [1, 3, 2, *last]
