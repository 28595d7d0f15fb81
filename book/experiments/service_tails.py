"""How long do users wait if a server works at a given share of its capacity?

    python book/experiments/service_tails.py            run what is missing of the record
    python book/experiments/service_tails.py --confirm  after an edit: run one short row again

The service of the page `deployment/plan`: a model of the size of Llama-3-8B in 16 bits on one H100,
with iteration times from the data sheet. Simulated, so nothing depends on this machine. The first
WARM_UP requests of a run are left out, because they find an empty server. A row is one run.
"""

import numpy as np
from record import main

from course_pkg.lm.decoder_config import DecoderConfig
from course_pkg.studies.deployment_plan.capacity import (
    Accelerator,
    ModelSize,
    Traffic,
    capacity,
    roofline,
)
from course_pkg.studies.scheduling.policies import ContinuousBatching
from course_pkg.studies.scheduling.simulation import per_token, simulate
from course_pkg.studies.scheduling.workload import gamma, lognormal, requests

WARM_UP, REQUESTS = 500, 2500
SEEDS = 5
PERCENTILES = [50, 95, 99]
USED = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
VARIATION = {"poisson": 1.0, "bursty": 3.0}  # of the gaps between requests, relative to their mean
SETTINGS = {
    "config": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    },
    "rate": 20.0,  # requests per second at the peak
    "prompt": {"mean": 900, "sigma": 0.7, "most": 6000},
    "answer": {"mean": 220, "sigma": 0.8, "most": 2000},
    "sample": 4000,
    "accelerator": {"memory": 80e9, "bandwidth": 3.35e12, "flops": 989e12, "price": 3.0},
    "shares": {"bandwidth_share": 0.7, "compute_share": 0.5},
    "memory_share": 0.9,
    "seconds_per_token": 0.05,
    "budget": 2048,  # tokens of an iteration
    "warm_up": WARM_UP,
    "requests": REQUESTS,
    "percentiles": PERCENTILES,
    "variation": VARIATION,
}
PROBE = {"used": 0.9, "arrivals": "poisson", "seed": 0}


def plan() -> list[dict]:
    """The rows: share of the capacity, kind of arrivals, seed."""
    return [
        {"used": used, "arrivals": arrivals, "seed": seed}
        for used in USED
        for arrivals in VARIATION
        for seed in range(SEEDS)
    ]


class Task:
    """The service, and its capacity."""

    def __init__(self) -> None:
        lengths = {}
        draw = np.random.default_rng(0)
        for name in ("prompt", "answer"):
            shape = SETTINGS[name]
            lengths[name] = lognormal(
                shape["mean"], shape["sigma"], SETTINGS["sample"], draw, most=shape["most"]
            )
        self.lengths = lengths
        self.traffic = Traffic.of(SETTINGS["rate"], *(x.tolist() for x in lengths.values()))
        size = ModelSize.of(DecoderConfig.from_dict(SETTINGS["config"]))
        chip = Accelerator("H100", **SETTINGS["accelerator"])
        self.cost = roofline(size, chip, **SETTINGS["shares"])
        room = SETTINGS["memory_share"] * chip.memory - size.weight_bytes
        self.capacity = capacity(
            self.traffic,
            self.cost,
            cache_tokens=room / size.cache_bytes_per_token,
            seconds_per_token=SETTINGS["seconds_per_token"],
        )


def measure(task: Task, key: dict) -> dict:
    """One run."""
    draw = np.random.default_rng(key["seed"])
    number = WARM_UP + REQUESTS
    rate = key["used"] * task.capacity.rate
    arrivals = gamma(rate, number, VARIATION[key["arrivals"]], draw)
    picked = draw.integers(SETTINGS["sample"], size=number)
    work = requests(arrivals, task.lengths["prompt"][picked], task.lengths["answer"][picked])
    policy = ContinuousBatching(int(task.capacity.at.running), SETTINGS["budget"])
    result = simulate(work, policy, task.cost)
    first = (result.first_token - result.arrival)[WARM_UP:]
    gaps = per_token(result)[WARM_UP:]
    return {
        "first_token": np.percentile(first, PERCENTILES).tolist(),
        "per_token": np.nanpercentile(gaps, PERCENTILES).tolist(),  # NaN: an answer of one token
    }


if __name__ == "__main__":
    main(__file__, plan(), Task, measure, probe=PROBE, settings=SETTINGS)
