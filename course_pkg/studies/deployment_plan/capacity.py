"""How many GPUs a service needs, and what a million tokens costs, from data sheets.

Not here: queues and tails, mixtures of experts, and communication of GPUs::

    seconds per iteration = base / (1 − u),  u: the share of time that is work of requests
    requests that run     = rate · tokens per answer · seconds per iteration      (Little 1961)

Sources: Williams, Waterman and Patterson 2009 (roofline); Pope et al. 2022, section 2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from course_pkg.common.arguments import require_between, require_integer
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.decoder_config import DecoderConfig
from course_pkg.serving.kv_cache import cache_bytes
from course_pkg.studies.scheduling.iteration_cost import CostModel


@dataclass(frozen=True)
class ModelSize:
    """What the weights and the cache of a model take.

    Attributes:
        matrices: parameters that a token is multiplied with.
        others: embeddings that are only looked up, norms and biases, in 16 bits.
        weight_bits, cache_bits: on average, scales included.
    """

    matrices: int
    others: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    weight_bits: float = 16.0
    cache_bits: float = 16.0

    @classmethod
    def of(
        cls, config: DecoderConfig, *, weight_bits: float = 16.0, cache_bits: float = 16.0
    ) -> "ModelSize":
        """The size of a decoder."""
        require_between(weight_bits, "weight_bits", 0, 64)
        require_between(cache_bits, "cache_bits", 0, 64)
        with torch.device("meta"):  # shapes alone
            decoder = Decoder(config)
        parameters = sum(parameter.numel() for parameter in decoder.parameters())
        matrices = sum(
            parameter.numel() for parameter in decoder.parameters() if parameter.ndim == 2
        )
        if not config.tied:  # the embeddings are then looked up, and no output matrix
            matrices -= decoder.embed_tokens.weight.numel()
        return cls(
            matrices=matrices,
            others=parameters - matrices,
            layers=config.layers,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            weight_bits=weight_bits,
            cache_bits=cache_bits,
        )

    @property
    def parameters(self) -> int:
        """All parameters; tied embeddings count once."""
        return self.matrices + self.others

    @property
    def weight_bytes(self) -> float:
        """Of all weights."""
        return self.matrices * self.weight_bits / 8 + self.others * 2

    @property
    def cache_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return cache_bytes(
            self.layers, self.kv_heads, self.head_dim, 1, bytes_per_value=self.cache_bits / 8
        )


@dataclass(frozen=True)
class Accelerator:
    """A GPU: bytes of memory, bytes and dense operations per second, and its price per hour."""

    name: str
    memory: float
    bandwidth: float
    flops: float
    price: float

    def __post_init__(self):
        for name in ("memory", "bandwidth", "flops", "price"):
            require_between(getattr(self, name), name, 0, math.inf)


def roofline(
    size: ModelSize,
    accelerator: Accelerator,
    *,
    pieces: int = 1,
    bandwidth_share: float = 1.0,
    compute_share: float = 1.0,
    fixed: float = 0.0,
) -> CostModel:
    """The cost of iterations as data sheets promise it: times of reading and computing add up.

    Args:
        pieces: accelerators that share each layer.
        bandwidth_share, compute_share: what a program reaches; 1 is a promise that nobody keeps.
        fixed: seconds that each iteration takes besides.
    """
    require_integer(pieces, "pieces")
    for name, share in (("bandwidth_share", bandwidth_share), ("compute_share", compute_share)):
        require_between(share, name, 0, 1 + 1e-12)
    require_between(fixed, "fixed", 0, math.inf, closed=True)
    bandwidth = pieces * accelerator.bandwidth * bandwidth_share
    flops = pieces * accelerator.flops * compute_share
    token = 2 * size.matrices / flops
    return CostModel(
        base=size.weight_bytes / bandwidth + fixed,
        prompt=token,
        pairs=4 * size.layers * size.heads * size.head_dim / flops,
        sequences=token,
        context=size.cache_bytes_per_token / bandwidth,
    )


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
        sizes = f"{len(lists[0])} prompts and {len(lists[1])} answers"
        if not lists[0] or len(lists[0]) != len(lists[1]):
            raise ValueError(f"{sizes}: give equally many, at least one")
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
    """The fewest replicas of which each takes at most the share `most_used` of its capacity."""
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
        price_per_million=price / tokens * 1e6,
    )
