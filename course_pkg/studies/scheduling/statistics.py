"""What users feel and what operators pay: latencies, tails, goodput, fairness, and intervals.

One simulation is one draw of a random workload: compare policies on several seeds, by differences.
Sources: vLLM (Kwon et al. 2023) for normalized latency; DistServe (Zhong et al. 2024) for goodput;
Jain, Chiu and Hawe 1984 for fairness. Chapter: serving/scheduling.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from course_pkg.studies.scheduling.loop import Simulation
from course_pkg.studies.scheduling.policies import Job

if TYPE_CHECKING:  # imported by what needs it: a simulation and its goodput don't
    import numpy as np


@dataclass(frozen=True)
class Spread:
    """A mean and percentiles, in seconds; of an empty sample, NaN."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: "np.ndarray") -> "Spread":
        """Of a sample, leaving out NaN; percentiles are interpolated.

        >>> import numpy as np
        >>> Spread.of(np.arange(101.0))
        Spread(mean=50.0, p50=50.0, p95=95.0, p99=99.0)
        """
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
    """All figures of a simulation.

    >>> from course_pkg.studies.scheduling import CostModel, RunToCompletion, requests, simulate
    >>> result = simulate(requests([0, 0], [5, 5], [4, 1]), RunToCompletion(), CostModel(base=1.0))
    >>> summary = summarize(result)
    >>> summary.completion.mean, summary.normalized.mean, summary.throughput  # 4 and 5 seconds
    (4.5, 3.0, 1.0)
    """
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
    """Requests per second that meet every target given, in seconds; see `Summary`.

    Raises ValueError without a target. A server's capacity is the highest rate of arrivals at which
    a share of requests, such as 0.9, meets the targets.
    """
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
    """Jain's index (Σx)² / (n Σx²) of non-negative values: 1 if all are equal, 1/n if one has all.

    Raises ValueError if there are no values, one is negative, or all are 0.

    >>> jain([1.0, 1.0, 0.0, 0.0])
    0.5
    """
    import numpy as np

    values = np.asarray(values, float)
    if not len(values) or np.any(values < 0) or not np.any(values > 0):
        raise ValueError(f"got {values}: give values of at least 0, one of them positive")
    return float(values.sum() ** 2 / (len(values) * np.square(values).sum()))


@dataclass(frozen=True)
class Interval:
    """A mean, and the bounds of its confidence interval."""

    mean: float
    low: float
    high: float


def bootstrap(
    values: Sequence[float], *, level: float = 0.95, samples: int = 2000, seed: int = 0
) -> Interval:
    """The mean of independent values, such as one per seed, with a percentile bootstrap interval.

    To compare policies, give the differences by seed. With few values the interval is too short:
    with 10 it covers about 90% instead of 95%. Raises ValueError for fewer than 5 values.

    >>> interval = bootstrap([3.0, 5.0, 4.0, 6.0, 2.0])
    >>> interval.mean, 2 < interval.low < 4 < interval.high < 6
    (4.0, True)
    """
    import numpy as np

    values = np.asarray(values, float)
    if len(values) < 5:
        raise ValueError(f"got {len(values)} values: give at least 5, better 20")
    picks = np.random.default_rng(seed).integers(len(values), size=(samples, len(values)))
    tail = (1 - level) / 2
    low, high = np.quantile(values[picks].mean(axis=1), [tail, 1 - tail]).tolist()
    return Interval(float(values.mean()), low, high)


def _span(result: Simulation) -> float:
    ends = (job.finished for job in result.jobs)
    return max(ends) - min(job.arrival for job in result.jobs)
