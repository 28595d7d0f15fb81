"""How many GPUs a service needs, and what a million tokens costs. Not here: queues and tails.

    seconds per iteration = base / (1 − u),  u: the share of time that is work of requests
    requests that run     = rate · tokens per answer · seconds per iteration      (Little 1961)

Chapter: deployment/plan.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course_pkg.common.arguments import require_between, require_integer
from course_pkg.studies.deployment_plan.roofline import Accelerator
from course_pkg.studies.scheduling.iteration_cost import CostModel


@dataclass(frozen=True)
class Traffic:
    """Requests per second, and a sample of their prompts' and answers' tokens, (requests,).

    Long answers weigh more than a mean shows, so give a real sample.
    """

    rate: float
    prompts: tuple[int, ...]
    answers: tuple[int, ...]

    @classmethod
    def of(
        cls, rate: float, prompts: int | Sequence[int], answers: int | Sequence[int]
    ) -> "Traffic":
        """Check and convert; one number stands for requests that are all equal."""
        require_between(rate, "rate", 0, math.inf)
        lists = []
        for name, lengths in (("prompts", prompts), ("answers", answers)):
            values = [lengths] if np.ndim(lengths) == 0 else list(lengths)
            lists.append(tuple(int(require_integer(length, name)) for length in values))
        if not lists[0] or len(lists[0]) != len(lists[1]):
            raise ValueError(
                f"{len(lists[0])} prompts and {len(lists[1])} answers: give equally many, at least "
                "one, or one number for each"
            )
        return cls(float(rate), *lists)

    @property
    def tokens_per_answer(self) -> float:
        """The mean."""
        return float(np.mean(self.answers))

    @property
    def tokens_per_running_request(self) -> float:
        """Tokens in the cache of a running request, on average over time: Σ o (p + o / 2) / Σ o."""
        prompts = np.array(self.prompts, float)
        answers = np.array(self.answers, float)
        return float((answers * (prompts + answers / 2)).sum() / answers.sum())

    def work(self, cost: CostModel) -> float:
        """Seconds that a request adds to all its iterations, on average: w."""
        prompts = np.array(self.prompts, float)
        answers = np.array(self.answers, float)
        return float(np.mean(cost.alone(prompts, answers) - cost.base * answers))


@dataclass(frozen=True)
class Load:
    """A server in steady state."""

    rate: float  # requests per second
    work_share: float  # of the time that isn't spent on reading weights: u
    iteration_seconds: float  # and so between the tokens of an answer
    running: float  # requests, on average
    cache_tokens: float  # of them, on average


def load_at(rate: float, traffic: Traffic, cost: CostModel) -> Load:
    """What a server does at a rate of requests per second; infinite if work takes all the time."""
    share = rate * traffic.work(cost)
    seconds = cost.base / (1 - share) if share < 1 else math.inf
    running = rate * traffic.tokens_per_answer * seconds
    return Load(rate, share, seconds, running, running * traffic.tokens_per_running_request)


@dataclass(frozen=True)
class Capacity:
    """The highest rate that a server sustains, in requests per second, and what limits it."""

    rate: float
    limit: str  # "cache" (or most_running), "time per token" or "work"
    by_limit: dict[str, float]  # the rate at which each of them would be reached
    at: Load


def capacity(
    traffic: Traffic,
    cost: CostModel,
    *,
    cache_tokens: float = math.inf,
    most_running: float = math.inf,
    seconds_per_token: float = math.inf,
) -> Capacity:
    """The highest rate in steady state, and which limit it reaches first.

    This is a mean: at this rate queues grow, so plan for less.

    Args:
        cache_tokens: for which there is memory.
        most_running: requests at a time, if the program limits them.
        seconds_per_token: the target for the mean time between tokens.
    """
    longest = max(p + a for p, a in zip(traffic.prompts, traffic.answers, strict=True))
    if cache_tokens < longest:
        raise ValueError(
            f"the longest request has {longest} tokens, but the memory holds {cache_tokens:.0f}: "
            "use fewer bits, more GPUs, or a smaller model"
        )
    if most_running < 1:
        raise ValueError(f"most_running must be at least 1, got {most_running}")
    if seconds_per_token <= cost.base:
        raise ValueError(
            f"reading the weights takes {cost.base:.3g} s, longer than the target of "
            f"{seconds_per_token:.3g} s per token: use fewer bits or more GPUs"
        )
    work = traffic.work(cost)
    running = min(most_running, cache_tokens / traffic.tokens_per_running_request)
    by_limit = {"work": 1 / work if work else math.inf}
    if math.isfinite(running):
        by_limit["cache"] = running / (traffic.tokens_per_answer * cost.base + running * work)
    if math.isfinite(seconds_per_token):
        by_limit["time per token"] = (1 - cost.base / seconds_per_token) * by_limit["work"]
    by_limit = dict(sorted(by_limit.items(), key=lambda item: item[1]))
    limit = next(iter(by_limit))
    rate = by_limit[limit]
    return Capacity(rate, limit, by_limit, load_at(rate, traffic, cost))


@dataclass(frozen=True)
class Plan:
    """Copies of a server for some traffic, and what they cost."""

    replicas: int
    accelerators: int
    used: float  # the share of the capacity that the traffic takes
    load: Load  # of each replica
    price_per_hour: float
    price_per_million: float  # tokens of answers


def plan(
    traffic: Traffic,
    cost: CostModel,
    limit: Capacity,
    accelerator: Accelerator,
    *,
    pieces: int = 1,
    most_used: float = 0.7,
) -> Plan:
    """The fewest replicas of which each takes at most the share `most_used` of its capacity.

    Args:
        pieces: accelerators per replica.
    """
    require_between(most_used, "most_used", 0, 1 + 1e-12)
    require_integer(pieces, "pieces")
    replicas = math.ceil(traffic.rate / (most_used * limit.rate) - 1e-9)
    price = replicas * pieces * accelerator.price
    tokens = traffic.rate * traffic.tokens_per_answer * 3600  # per hour
    return Plan(
        replicas=replicas,
        accelerators=replicas * pieces,
        used=traffic.rate / (replicas * limit.rate),
        load=load_at(traffic.rate / replicas, traffic, cost),
        price_per_hour=price,
        price_per_million=price / tokens * 1e6,
    )
