"""The simulation of a server, iteration after iteration, and what users feel of it.

Sources: vLLM (Kwon et al. 2023) for normalized latency; DistServe (Zhong et al. 2024) for goodput;
Jain, Chiu and Hawe 1984 for fairness.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from course_pkg.studies.scheduling.iteration_cost import CostModel, Work
from course_pkg.studies.scheduling.kv_memory import KVMemory
from course_pkg.studies.scheduling.policies import Chunk, Job, Policy, Preemptive
from course_pkg.studies.scheduling.workload import SimulatedRequest

if TYPE_CHECKING:  # imported by what needs it: a simulation and its goodput don't
    import numpy as np


def _column(name: str) -> cached_property:
    def values(self: "Simulation") -> "np.ndarray":
        import numpy as np

        return np.array([getattr(job, name) for job in self.jobs])

    return cached_property(values)


@dataclass(frozen=True)
class Iteration:
    """One iteration: its time in seconds, and (request, tokens) of every member."""

    start: float
    end: float
    batch: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Simulation:
    """What happened to each request, in the order given: its job, and the same in columns.

    The columns are arrays, (requests,), in seconds or tokens.
    """

    jobs: tuple[Job, ...] = field(repr=False)
    cost: CostModel
    busy: float  # the server's seconds in iterations
    stalled: float = 0.0  # and waiting for KV memory before one
    iterations: int = 0
    swapped: int = 0  # tokens moved between the memories
    trace: tuple[Iteration, ...] = field(repr=False, default=())  # if it was asked for

    arrival = _column("arrival")
    prompt = _column("prompt")
    output = _column("output")
    first_token = _column("first_token")
    last_token = _column("last_token")
    finished = _column("finished")

    @cached_property
    def alone(self) -> "np.ndarray":
        """How long it takes with the server for itself."""
        return self.cost.alone(self.prompt, self.output)


def simulate(
    requests: Sequence[SimulatedRequest],
    policy: Policy,
    cost: CostModel,
    *,
    memory: KVMemory | None = None,
    trace: bool = False,
) -> Simulation:
    """Serve all requests, in any order of arrival, until the last one has finished.

    Args:
        memory: limits keys and values; None means that there is room for all.
    """
    policy = copy.deepcopy(policy)
    memory = copy.deepcopy(memory)
    jobs = [Job(i, r.arrival, r.prompt, r.output) for i, r in enumerate(requests)]
    _check(jobs, policy, memory)
    coming = sorted(jobs, key=lambda job: job.arrival)[::-1]  # the next one is the last
    now = busy = stalled = 0.0
    iterations = 0
    left = len(jobs)
    recorded = []
    while left:
        while coming and coming[-1].arrival <= now:
            policy.add(coming.pop())
        batch = policy.next_batch(now)
        start = now
        if not batch:
            now = max(now, min(coming[-1].arrival if coming else math.inf, policy.wake()))
            if now == math.inf:
                raise RuntimeError(f"{type(policy).__name__} runs nothing, but {left} jobs wait")
            continue
        if memory:
            batch, start = memory.admit(batch, policy, now)
            stalled += start - now
        seconds = _seconds(batch, cost)
        now = start + seconds
        busy += seconds
        iterations += 1
        if memory:
            memory.overlap(policy, start, now)
        for job, tokens, _ in batch:
            if job.read < job.prompt:
                job.read = min(job.read + tokens, job.prompt)
                if job.read < job.prompt:
                    continue
                job.first_token = now
            if job.produced < job.output:  # rows that are only padding go on
                job.produced += 1
                job.last_token = now
        if trace:
            members = tuple((job.index, tokens) for job, tokens, _ in batch)
            recorded.append(Iteration(start, now, members))
        while coming and coming[-1].arrival <= now:
            policy.add(coming.pop())
        for job in policy.ran(batch, seconds, now):
            job.finished = now
            left -= 1
            if memory:
                memory.release(job)
    return Simulation(
        jobs=tuple(jobs),
        cost=cost,
        busy=busy,
        stalled=stalled,
        iterations=iterations,
        swapped=memory.moved if memory else 0,
        trace=tuple(recorded),
    )


def _seconds(batch: list[Chunk], cost: CostModel) -> float:
    prompt = pairs = sequences = context = 0
    for job, tokens, before in batch:
        if job.produced:
            sequences += 1
            context += before + 1
        else:
            prompt += tokens
            pairs += tokens * before + tokens * (tokens + 1) // 2
    return cost.seconds(Work(prompt, pairs, sequences, context))


def _check(jobs: list[Job], policy: Policy, memory: KVMemory | None) -> None:
    if not jobs:
        raise ValueError("there are no requests: give at least one")
    if memory is None:
        return
    if not isinstance(policy, Preemptive):
        raise ValueError(
            f"{type(policy).__name__} doesn't preempt, so memory cannot be limited: leave out "
            "`memory`, or take ContinuousBatching, MLFQ or SkipJoinMLFQ"
        )
    for job in jobs:
        if job.prompt + job.output > memory.capacity:
            raise ValueError(
                f"request {job.index} needs {job.prompt + job.output} tokens of KV memory, and "
                f"the capacity is {memory.capacity}: enlarge it, or shorten the request"
            )


@dataclass(frozen=True)
class Spread:
    """A mean and percentiles, in seconds; of an empty sample, NaN."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: "np.ndarray") -> "Spread":
        """Of a sample, leaving out NaN; percentiles are interpolated."""
        import numpy as np

        values = values[~np.isnan(values)]
        if not len(values):
            return cls(math.nan, math.nan, math.nan, math.nan)
        return cls(float(values.mean()), *np.percentile(values, [50, 95, 99]).tolist())


@dataclass(frozen=True)
class Summary:
    """A simulation in figures, from the first arrival until the last request leaves."""

    completion: Spread  # from arrival until the request leaves
    normalized: Spread  # that, per token of the answer
    first_token: Spread  # from arrival to the first token
    per_token: Spread  # between tokens, of answers with at least two
    throughput: float  # tokens of answers per second
    requests: float  # per second
    fairness: float  # Jain's index of time alone / completion time
    busy: float  # the share of the time in which iterations run


def summarize(result: Simulation) -> Summary:
    """All figures of a simulation."""
    completion = result.finished - result.arrival
    span = _span(result)
    return Summary(
        completion=Spread.of(completion),
        normalized=Spread.of(completion / result.output),
        first_token=Spread.of(result.first_token - result.arrival),
        per_token=Spread.of(per_token(result)),
        throughput=float(result.output.sum() / span),
        requests=len(completion) / span,
        fairness=jain(result.alone / completion),
        busy=result.busy / span,
    )


def per_token(result: Simulation) -> "np.ndarray":
    """Mean seconds between a request's tokens, (requests,); NaN for answers of one token."""
    import numpy as np

    return np.array([job.per_token for job in result.jobs])


def goodput(
    result: Simulation,
    *,
    completion: float = math.inf,
    normalized: float = math.inf,
    first_token: float = math.inf,
    between_tokens: float = math.inf,
) -> float:
    """Requests per second that meet every target given, in seconds; see `Summary`."""
    if min(completion, normalized, first_token, between_tokens) == math.inf:
        raise ValueError("there is no target: give at least one, in seconds")

    def in_time(job: Job) -> bool:
        took = job.finished - job.arrival
        return (
            took <= completion
            and took / job.output <= normalized
            and job.first_token - job.arrival <= first_token
            and not job.per_token > between_tokens  # NaN: one token has no gap to be late
        )

    return sum(map(in_time, result.jobs)) / _span(result)


def jain(values: "np.ndarray") -> float:
    """Jain's index (Σx)² / (n Σx²) of non-negative values: 1 if all are equal, 1/n at the least."""
    import numpy as np

    values = np.asarray(values, float)
    if not len(values) or np.any(values < 0) or not np.any(values > 0):
        raise ValueError(f"got {values}: give values of at least 0, one of them positive")
    return float(values.sum() ** 2 / (len(values) * np.square(values).sum()))


def _span(result: Simulation) -> float:
    ends = (job.finished for job in result.jobs)
    return max(ends) - min(job.arrival for job in result.jobs)
