"""Claims that one reads about batching and scheduling, against their baselines, in simulation.

Iteration times are SmolLM2's, from the record; each comparison is paired by seed.
"""

import numpy as np

from course_pkg.serving.simulator.cost import recorded
from course_pkg.serving.simulator.loop import simulate
from course_pkg.serving.simulator.mlfq import SkipJoinMLFQ
from course_pkg.serving.simulator.policies import (
    ContinuousBatching,
    RunToCompletion,
    ShortestPromptFirst,
)
from course_pkg.serving.simulator.statistics import bootstrap, summarize
from course_pkg.serving.simulator.workload import Request, lognormal, poisson, requests

COST = recorded().model
QUANTUM = COST.first_iteration(1)
CONTINUOUS = ContinuousBatching(16)


def summaries(policy, rate: float, seeds: int = 6, number: int = 400) -> list:
    results = []
    for seed in range(seeds):
        generator = np.random.default_rng(seed)
        served = requests(
            poisson(rate, number, generator),
            lognormal(100, 1.0, number, generator, most=1000),
            lognormal(60, 1.2, number, generator, most=1000),
        )
        results.append(summarize(simulate(served, policy, COST)))
    return results


def change(ours: list, baseline: list, figure):
    """The mean difference of a figure from the baseline, with its interval."""
    return bootstrap([figure(a) - figure(b) for a, b in zip(ours, baseline, strict=True)])


def test_continuous_batching_shortens_the_wait_and_lengthens_the_time_per_token():
    """ "Lower latency" is true of completion next to one by one, and false of a single token."""
    ours, baseline = summaries(CONTINUOUS, 0.2), summaries(RunToCompletion(), 0.2)
    assert change(ours, baseline, lambda s: s.completion.mean).high < 0
    assert change(ours, baseline, lambda s: s.per_token.mean).low > 0


def gaps(token_budget: int | None) -> tuple[float, float]:
    """A long prompt joins: the longest gap of who was there, and the newcomer's first token."""
    two = [Request(0.0, 16, 40), Request(0.5, 768, 5)]
    result = simulate(two, ContinuousBatching(2, token_budget), COST, trace=True)
    ends = [it.end for it in result.trace if 0 in dict(it.batch)]
    return float(np.diff(ends).max()), float(result.first_token[1] - result.arrival[1])


def test_a_long_prompt_stalls_who_runs_unless_it_is_read_in_chunks():
    (whole_gap, whole_first), (chunk_gap, chunk_first) = gaps(None), gaps(32)
    usual = COST.alone(16, 2) - COST.alone(16, 1)
    assert whole_gap > 40 * usual and chunk_gap < 4 * usual
    assert chunk_first > 1.3 * whole_first  # what the chunks cost the new request


def test_short_prompts_first_improves_the_mean_at_the_cost_of_the_tail():
    ours, baseline = summaries(ShortestPromptFirst(16), 1.5), summaries(CONTINUOUS, 1.5)
    assert change(ours, baseline, lambda s: s.completion.mean).high < 0
    assert change(ours, baseline, lambda s: s.completion.p99).low > 0


def test_skip_join_mlfq_improves_the_mean_and_the_first_token_at_the_cost_of_the_rest():
    fastserve = SkipJoinMLFQ(16, QUANTUM, cost=COST)
    ours, baseline = summaries(fastserve, 1.5), summaries(CONTINUOUS, 1.5)
    for figure in (
        lambda s: s.completion.mean,
        lambda s: s.normalized.mean,
        lambda s: s.first_token.mean,
    ):
        assert change(ours, baseline, figure).high < 0
    for figure in (lambda s: s.completion.p99, lambda s: s.per_token.mean):
        assert change(ours, baseline, figure).low > 0
