"""Which layers should have an adapter? Four sets of targets with about equally many parameters.

    python book/experiments/lora_targets.py            run what is missing of the record
    python book/experiments/lora_targets.py --confirm  after an edit: run one short row again

The task, the scale and the way of choosing a rate are those of lora_rank, and so are the rates of
the two adapters that it has already tuned, and their runs with its seeds.
"""

from lora_rank import ALPHA, RATES, USE_RSLORA, measure, run
from navigator_task import DATA, SEEDS, SETTINGS, TUNING_SEED, Task
from record import main

# Target modules and rank: each has within 2 % of 2.44 million parameters.
TUNED = {adapter: RATES[adapter][1] for adapter in (("all", 8), ("q, v", 42))}
TRIED = (1e-3, 3e-3, 1e-2)
BEST = {("MLP", 13): 3e-3, ("q, k, v, o", 21): 3e-3}  # of these, on the validation split
MORE_SEEDS = (3,)
PROBE = {"steps": 2, "targets": "MLP", "rank": 13, "rate": 1e-3, "seed": 0, "answers": 4}


def plan() -> list[dict]:
    """The rows: runs that choose a rate, then the reported runs by seed."""
    tuning = [
        run(*adapter, rate, TUNING_SEED, "validation") for rate in TRIED[1::-1] for adapter in BEST
    ]
    tuning += [run(*adapter, TRIED[2], TUNING_SEED, "validation") for adapter in BEST]
    reported = [
        run(*adapter, rate, seed, "held-out")
        for seed in (*SEEDS, *MORE_SEEDS)
        for adapter, rate in (BEST if seed in SEEDS else BEST | TUNED).items()
    ]
    return [PROBE, *tuning, *reported]


if __name__ == "__main__":
    settings = {**SETTINGS, "alpha": ALPHA, "use_rslora": USE_RSLORA}
    main(__file__, plan(), Task, measure, probe=PROBE, settings=settings, data=DATA)
