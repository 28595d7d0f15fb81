"""Which request should run next? Policies on one simulated server, with SmolLM2's iteration times.

    python book/experiments/serving_policies.py            run what is missing of the record
    python book/experiments/serving_policies.py --confirm  after an edit: run one short row again

A row is a policy in a setting. It has RUNS long runs; in each, the first WARM_UP requests are left
out, because they find an empty server, and the others are cut into BATCHES consecutive batches.
Each list of figures has one value per batch. A run's seed draws the same requests for all policies,
so they can be compared batch by batch. The load is the rate of arrivals as a share of the capacity:
the requests per second that the baseline completes if it never lacks any.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache

import numpy as np
from record import main

from course_pkg.studies.scheduling import workload as draw
from course_pkg.studies.scheduling.iteration_cost import Work, recorded
from course_pkg.studies.scheduling.kv_memory import KVMemory
from course_pkg.studies.scheduling.mlfq import MLFQ, SkipJoinMLFQ
from course_pkg.studies.scheduling.policies import (
    SRPT,
    ContinuousBatching,
    FairClients,
    ShortestFirst,
)
from course_pkg.studies.scheduling.simulation import Simulation, goodput, simulate, summarize

RUNS, WARM_UP, BATCHES, BATCH = 3, 4000, 5, 5000
REQUESTS = WARM_UP + BATCHES * BATCH
START = 1000  # requests of a run, to compare the start with what follows
WAITING = 6000  # requests of which the capacity is measured
BUDGET = 64  # tokens of an iteration, where prompts are read in chunks
COST = recorded().model
QUANTUM = COST.first_iteration(1)
TARGET = {"first_token": 2.0, "between_tokens": 0.2}  # seconds
EDGES = (1, 10, 30, 100, 300, 1001)  # tokens of answers, for the slowdown by length
KV_TOKENS, RESERVE = 3000, 300
CROWD, CROWD_LOAD, OWN_LOAD = 300, 0.5, 0.3  # requests that one client sends at once; both loads

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
    "gamma 4": lambda rate, g: draw.gamma(rate, REQUESTS, 4.0, g),
    "on-off": lambda rate, g: draw.on_off(rate, REQUESTS, 20.0, 60.0, g),
}


class OwnPart(SkipJoinMLFQ):
    """Skip-join MLFQ that charges a job what its part of the iteration would take alone."""

    def charge(self, chunk, seconds):
        """As in `MLFQ`, but the chunk's own time."""
        job, tokens, before = chunk
        if job.produced > 1:
            return COST.seconds(Work.of(contexts=[before + 1]))
        return COST.seconds(Work(tokens, tokens * before + tokens * (tokens + 1) // 2))


POLICIES = {
    "fcfs": lambda k: ContinuousBatching(k["slots"], budget(k)),
    "shortest prompt": lambda k: ShortestFirst(k["slots"], token_budget=budget(k)),
    "srpt": lambda k: SRPT(k["slots"], COST, budget(k)),
    "mlfq": lambda k: MLFQ(k["slots"], QUANTUM, **feedback(k)),
    "skip-join": lambda k: SkipJoinMLFQ(k["slots"], QUANTUM, cost=COST, **feedback(k)),
    "own part": lambda k: OwnPart(k["slots"], QUANTUM, cost=COST, **feedback(k)),
}
USUAL = {
    "policy": "fcfs",
    "load": 0.9,
    "slots": 8,
    "lengths": "mixed",
    "arrivals": "poisson",
    "chunks": True,  # whether prompts are read in chunks, within BUDGET tokens per iteration
    "error": None,  # of the predicted answer: the deviation of its logarithm
    "starvation": None,  # seconds until promotion
    "memory": None,  # tokens per second between GPU and host
    "proactive": False,
}
PROBE = USUAL | {"load": 0.5}


def budget(key: dict) -> int | None:
    """The tokens of an iteration; None where prompts are read at once."""
    return BUDGET if key["chunks"] else None


def feedback(key: dict) -> dict:
    """What a policy with feedback queues is told."""
    return {"token_budget": budget(key), "starvation": key["starvation"] or float("inf")}


def plan() -> list[dict]:
    """The usual setting, and one change at a time."""
    two, four = ("fcfs", "skip-join"), ("fcfs", "shortest prompt", "skip-join", "srpt")
    rows = [{"load": load, "policy": p} for load in (0.9, 0.5, 0.8, 0.95) for p in four]
    rows += [{"error": each, "policy": "predicted"} for each in (0.0, 0.5, 1.0, 2.0)]
    rows += [{"arrivals": "crowd", "load": None, "policy": p} for p in ("fcfs", "fair")]
    rows += [{"chunks": False, "policy": p} for p in ("fcfs", "mlfq", "skip-join")]
    rows += [{"policy": "mlfq"}]
    rows += [
        {"lengths": "long prompts", "chunks": chunks, "policy": p}
        for chunks in (True, False)
        for p in ("fcfs", "mlfq", "skip-join", "own part")
    ]
    rows += [{"slots": n, "policy": p} for n in (4, 16, 32) for p in two]
    rows += [{"lengths": x, "policy": p} for x in ("narrow", "equal", "zipf") for p in two]
    rows += [{"load": 0.8, "arrivals": x, "policy": p} for x in ("gamma 4", "on-off") for p in two]
    rows += [{"starvation": s, "policy": "skip-join"} for s in (5, 20)]
    rows += [
        {"memory": b, "policy": p, "proactive": ahead}
        for b in (1000, 4000, 16000)
        for p, ahead in (("fcfs", False), ("skip-join", False), ("skip-join", True))
    ]
    return [PROBE] + [USUAL | row for row in rows if USUAL | row != PROBE]


@cache
def capacity(slots: int, lengths: str) -> float:
    """Requests per second that the baseline completes while others always wait."""
    served = requests(lengths, np.zeros(WAITING), np.random.default_rng(1000))
    ends = np.sort(simulate(served, ContinuousBatching(slots, BUDGET), COST).finished)
    first, last = WAITING // 10, WAITING * 9 // 10  # without the start, and the end without a queue
    return (last - first) / (ends[last] - ends[first])


def requests(lengths: str, arrivals: np.ndarray, generator: np.random.Generator) -> list:
    """Requests with lengths of this kind."""
    prompts, answers = (each(generator, len(arrivals)) for each in LENGTHS[lengths])
    return draw.requests(arrivals, prompts, answers)


def measure(_, key: dict) -> dict:
    """The figures of each batch, in seconds and shares; the capacity in requests per second.

    start: the mean completion time of each run's first requests, which find an empty server.
    """
    rows, starts = [], []
    for run in range(RUNS):
        result, clients = simulated(key, np.random.default_rng(run))
        starts.append(four_digits((result.finished - result.arrival)[:START].mean()))
        for number, part in enumerate(batches(result)):
            rows.append(figures(part))
            if clients is not None:
                start = WARM_UP + number * BATCH
                others = clients[start : start + BATCH] == 0
                waits = (part.first_token - part.arrival)[others]
                rows[-1] |= {"others_first": waits.mean(), "others_p99": np.percentile(waits, 99)}
    columns = {name: [four_digits(row[name]) for row in rows] for name in rows[0]}
    if key != USUAL | {"policy": key["policy"]}:
        del columns["slowdowns"], columns["fairness"]
    if key["memory"] is None:
        del columns["stalled"]
    most = capacity(key["slots"], key["lengths"])
    return {"capacity": most, "start": starts, **columns}


def simulated(key: dict, generator: np.random.Generator) -> tuple[Simulation, np.ndarray | None]:
    """One run, and the client of each request where there are two: 1 sends crowds, 0 doesn't."""
    most, clients, memory = capacity(key["slots"], key["lengths"]), None, None
    if key["arrivals"] == "crowd":
        arrivals, clients = crowds(most, generator)
    else:
        arrivals = ARRIVALS[key["arrivals"]](key["load"] * most, generator)
    served = requests(key["lengths"], arrivals, generator)
    if key["memory"]:
        reserve = RESERVE if key["proactive"] else 0
        memory = KVMemory(KV_TOKENS, key["memory"], proactive=key["proactive"], reserve=reserve)
    if key["policy"] == "fair":
        policy = FairClients(key["slots"], clients.tolist(), budget(key))
    elif key["policy"] == "predicted":
        factors = np.exp(key["error"] * generator.standard_normal(len(served)))
        policy = ShortestFirst(
            key["slots"],
            lambda job: COST.alone(job.prompt, job.output * factors[job.index]),
            budget(key),
        )
    else:
        policy = POLICIES[key["policy"]](key)
    return simulate(served, policy, COST, memory=memory), clients


def crowds(most: float, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Arrivals of two clients, and which is whose: 0 sends alone, 1 sends CROWD at once."""
    own = draw.poisson(OWN_LOAD * most, REQUESTS, generator)
    starts = draw.poisson(CROWD_LOAD * most / CROWD, REQUESTS // CROWD, generator)
    arrivals = np.concatenate([own, np.repeat(starts, CROWD)])
    order = np.argsort(arrivals, kind="stable")[:REQUESTS]
    return arrivals[order], (order >= len(own)).astype(int)


def batches(result: Simulation) -> Iterator[Simulation]:
    """The parts of a run after its warm-up, by the order of arrival."""
    for number in range(BATCHES):
        start = WARM_UP + number * BATCH
        yield replace(result, jobs=result.jobs[start : start + BATCH])


def figures(part: Simulation) -> dict:
    """The figures of one batch."""
    summary, completion = summarize(part), part.finished - part.arrival
    slowdown = completion / part.alone
    groups = np.digitize(part.output, EDGES)
    return {
        "mean": summary.completion.mean,
        "p99": summary.completion.p99,
        "first": summary.first_token.mean,
        "per_token": summary.per_token.mean,
        "on_time": goodput(part, **TARGET) / summary.requests,
        "fairness": summary.fairness,
        "stalled": part.stalled / (part.stalled + part.busy),
        "slowdowns": [float(slowdown[groups == i].mean()) for i in range(1, len(EDGES))],
    }


def four_digits(value):
    """The value, or each of a list, with four significant digits."""
    if isinstance(value, list):
        return [four_digits(each) for each in value]
    return float(f"{value:.4g}")


if __name__ == "__main__":
    settings = {
        "cost": {name: float(f"{rate:.4g}") for name, rate in asdict(COST).items()},
        "runs": RUNS,
        "warm_up": WARM_UP,
        "batches": BATCHES,
        "batch": BATCH,
        "start": START,
        "token_budget": BUDGET,
        "target": TARGET,
        "edges": list(EDGES),
        "kv_tokens": KV_TOKENS,
        "reserve": RESERVE,
        "crowd": CROWD,
        "crowd_load": CROWD_LOAD,
        "own_load": OWN_LOAD,
    }
    main(__file__, plan(), lambda: None, measure, probe=PROBE, settings=settings, data=())
