"""Which request should run next? Policies on one simulated server, with SmolLM2's iteration times.

    python book/experiments/serving_policies.py            run what is missing of the record
    python book/experiments/serving_policies.py --confirm  after an edit: run one short row again

A row is a policy in a setting. Each of its lists has one value per seed, and a seed draws the same
requests for all policies, so they can be compared in pairs. The load is the rate of arrivals as a
share of the capacity: the requests per second that continuous batching, first come first served,
completes if all of them wait from the start.
"""

from dataclasses import asdict
from functools import cache

import numpy as np
from record import main

from course_pkg.serving.simulator import (
    MLFQ,
    SRPT,
    ContinuousBatching,
    KVMemory,
    ShortestPromptFirst,
    SkipJoinMLFQ,
    Work,
    goodput,
    recorded,
    simulate,
    summarize,
)
from course_pkg.serving.simulator import workload as draw
from course_pkg.serving.simulator.mlfq import ROUNDING

SEEDS, REQUESTS, WAITING = 20, 1000, 3000
COST = recorded().model
QUANTUM = COST.first_iteration(1)
TARGET = {"first_token": 2.0, "between_tokens": 0.2}  # seconds
EDGES = (1, 10, 30, 100, 300, 1001)  # tokens of answers, for the slowdown by length
KV_TOKENS, RESERVE = 3000, 300

LENGTHS = {  # name: (prompts, answers), each from a generator and a number
    "mixed": (
        lambda g, n: draw.lognormal(100, 1.0, n, g, most=1000),
        lambda g, n: draw.lognormal(60, 1.2, n, g, most=1000),
    ),
    "narrow": (
        lambda g, n: draw.lognormal(100, 1.0, n, g, most=1000),
        lambda g, n: draw.lognormal(60, 0.3, n, g, most=1000),
    ),
    "equal": (lambda g, n: np.full(n, 64), lambda g, n: np.full(n, 60)),
    "two kinds": (lambda g, n: np.full(n, 64), lambda g, n: draw.bimodal(16, 400, 0.1, n, g)),
    "zipf": (
        lambda g, n: draw.zipf(0.9, n, g, most=500),
        lambda g, n: draw.zipf(0.9, n, g, most=500),
    ),
    "long prompts": (
        lambda g, n: draw.bimodal(32, 768, 0.2, n, g),
        lambda g, n: draw.lognormal(8, 0.5, n, g, most=50),
    ),
}
ARRIVALS = {
    "poisson": lambda rate, g: draw.poisson(rate, REQUESTS, g),
    "gamma 2": lambda rate, g: draw.gamma(rate, REQUESTS, 2.0, g),
    "gamma 4": lambda rate, g: draw.gamma(rate, REQUESTS, 4.0, g),
    "on-off": lambda rate, g: draw.on_off(rate, REQUESTS, 20.0, 60.0, g),
}


class OwnPart(SkipJoinMLFQ):
    """Skip-join MLFQ that charges a job what its part of the iteration would take alone."""

    def ran(self, batch, seconds, now):
        """As in `MLFQ`, with another charge."""
        kept = []
        for job, tokens, before in batch:
            if job.done:
                continue
            first = job.produced == 1
            work = Work.of(prompts=[tokens]) if first else Work.of(contexts=[before + 1])
            job.used += COST.seconds(work)
            job.waits_since = now
            if job.used < self.quanta[job.level] * ROUNDING:
                kept.append(job)
                continue
            job.level, job.used = min(job.level + 1, len(self.queues) - 1), 0.0
            self.queues[job.level][job.index] = job
        self.put_back(kept)
        return [job for job, _, _ in batch if job.done]


POLICIES = {
    "fcfs": lambda slots, starvation: ContinuousBatching(slots),
    "shortest prompt": lambda slots, starvation: ShortestPromptFirst(slots),
    "srpt": lambda slots, starvation: SRPT(slots, COST),
    "mlfq": lambda slots, starvation: MLFQ(slots, QUANTUM, starvation=starvation),
    "skip-join": lambda slots, starvation: SkipJoinMLFQ(
        slots, QUANTUM, cost=COST, starvation=starvation
    ),
    "own part": lambda slots, starvation: OwnPart(slots, QUANTUM, cost=COST, starvation=starvation),
}
USUAL = {
    "policy": "fcfs",
    "load": 0.9,
    "slots": 8,
    "lengths": "mixed",
    "arrivals": "poisson",
    "starvation": None,  # seconds until promotion
    "memory": None,  # tokens per second between GPU and host
    "proactive": False,
}
PROBE = USUAL | {"load": 0.5}


def plan() -> list[dict]:
    """The usual setting, and one change at a time."""
    three = ("fcfs", "mlfq", "skip-join")
    rows = [{"load": x, "policy": p} for x in (0.5, 0.7, 0.8, 0.9, 0.95) for p in POLICIES]
    rows += [
        {"load": 0.8, "arrivals": a, "policy": p} for a in list(ARRIVALS)[1:] for p in POLICIES
    ]
    rows += [
        {"lengths": each, "policy": p}
        for each in list(LENGTHS)[1:]
        for p in (*three, "own part", "srpt")
    ]
    rows += [{"slots": n, "policy": p} for n in (2, 4, 16, 32) for p in three]
    rows += [{"starvation": s, "policy": "skip-join"} for s in (5, 10, 20, 40, 80, 160)]
    rows += [
        {"memory": b, "policy": p, "proactive": ahead}
        for b in (1000, 4000, 16000)
        for p, ahead in (("fcfs", False), ("skip-join", False), ("skip-join", True))
    ]
    return [PROBE] + [USUAL | row for row in rows if USUAL | row != PROBE]


@cache
def capacity(slots: int, lengths: str) -> float:
    """Requests per second that the server completes if it never lacks any."""
    served = requests(lengths, np.zeros(WAITING), np.random.default_rng(1000))
    return summarize(simulate(served, ContinuousBatching(slots), COST)).requests


def requests(lengths: str, arrivals: np.ndarray, generator: np.random.Generator) -> list:
    """Requests with lengths of this kind."""
    prompts, answers = (each(generator, len(arrivals)) for each in LENGTHS[lengths])
    return draw.requests(arrivals, prompts, answers)


def measure(_, key: dict) -> dict:
    """The figures of each seed, in seconds and shares, and the capacity in requests per second."""
    most = capacity(key["slots"], key["lengths"])
    policy = POLICIES[key["policy"]](key["slots"], key["starvation"] or float("inf"))
    memory = None
    if key["memory"]:
        reserve = RESERVE if key["proactive"] else 0
        memory = KVMemory(KV_TOKENS, key["memory"], proactive=key["proactive"], reserve=reserve)
    rows = []
    for seed in range(SEEDS):
        generator = np.random.default_rng(seed)
        arrivals = ARRIVALS[key["arrivals"]](key["load"] * most, generator)
        served = requests(key["lengths"], arrivals, generator)
        rows.append(figures(simulate(served, policy, COST, memory=memory)))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    if key != USUAL | {"policy": key["policy"]}:
        del columns["slowdowns"], columns["fairness"]
    if memory is None:
        del columns["stalled"]
    return {"capacity": most, **columns}


def figures(result) -> dict:
    """The figures of one simulation, with four digits."""
    summary, completion = summarize(result), result.finished - result.arrival
    slowdown = completion / result.alone
    groups = np.digitize(result.output, EDGES)
    found = {
        "mean": summary.completion.mean,
        "p99": summary.completion.p99,
        "first": summary.first_token.mean,
        "per_token": summary.per_token.mean,
        "on_time": goodput(result, **TARGET) / summary.requests,
        "fairness": summary.fairness,
        "stalled": result.stalled / (result.stalled + result.busy),
        "slowdowns": [float(slowdown[groups == i].mean()) for i in range(1, len(EDGES))],
    }
    return {name: four_digits(value) for name, value in found.items()}


def four_digits(value):
    """The value, or each of a list, with four significant digits."""
    if isinstance(value, list):
        return [four_digits(each) for each in value]
    return float(f"{value:.4g}")


if __name__ == "__main__":
    settings = {
        "cost": {name: float(f"{rate:.4g}") for name, rate in asdict(COST).items()},
        "seeds": SEEDS,
        "requests": REQUESTS,
        "target": TARGET,
        "edges": list(EDGES),
        "kv_tokens": KV_TOKENS,
        "reserve": RESERVE,
    }
    main(__file__, plan(), lambda: None, measure, probe=PROBE, settings=settings, data=())
