"""What does each method of fine-tuning cost, and what does it reach? Ten methods on SmolLM2.

    python book/experiments/peft_methods.py            run what is missing of the record
    python book/experiments/peft_methods.py --confirm  after an edit: run one short row again

All methods have the data, the steps and the schedule of `navigator_task`. The learning rate of each
is chosen on the validation split, with one seed: three rates to start with, and more as long as the
best one is at an edge. Then each method is trained with three other seeds, and the held-out loss
and the costs are measured. Every run has a process of its own, so that its memory can be measured.
"""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from navigator_task import DATA, SETTINGS, STEPS, TUNING_SEED
from peft_run import (
    FILE_WEIGHTS,
    FORWARD_TOKENS,
    METHODS,
    OTHERS,
    VIRTUAL_TOKENS,
    Method,
    in_this_process,
)
from record import find, main

SEEDS = (1, 2, 3)
LADDER = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0)
FIRST_RATES = 3
PROBE = {"method": "IA³", "steps": 2, "rate": 1e-2, "seed": 0, "split": "validation", "answers": 4}


def plan(rows: Sequence[dict]) -> list[dict]:
    """The rows to measure, as far as the measured ones tell: bases, rates, then seed by seed."""
    bases = [{"method": name, "steps": 0, "split": "held-out"} for name in OTHERS if "base" in name]
    losses: dict[str, dict[float, float]] = {name: {} for name in METHODS}
    for row in rows:
        if row["split"] == "validation" and row["steps"] == STEPS:
            losses[row["method"]][row["rate"]] = row["nll"]
    rates = {name: rates_of(method, losses[name]) for name, method in METHODS.items()}
    tuning = [
        run(name, rate, TUNING_SEED, "validation") for name in METHODS for rate in rates[name]
    ]
    if any(find(rows, key) is None for key in tuning):
        return [PROBE, *bases, *tuning]
    best = {name: min(tried, key=tried.get) for name, tried in losses.items()}
    reported = [run(name, best[name], seed, "held-out") for seed in SEEDS for name in METHODS]
    reported.insert(len(METHODS), run(FILE_WEIGHTS, best["QLoRA"], SEEDS[0], "held-out"))
    return [PROBE, *bases, *tuning, *reported]


def rates_of(method: Method, losses: dict[float, float]) -> list[float]:
    """The rates to try: the first ones, those tried, and one more if the best is at an edge."""
    start = LADDER.index(method.lowest_rate)
    rates = sorted({*LADDER[start : start + FIRST_RATES], *losses})
    if set(rates) == set(losses):
        best = min(losses, key=losses.get)
        if best == rates[0]:
            rates.insert(0, LADDER[LADDER.index(best) - 1])
        elif best == rates[-1]:
            rates.append(LADDER[LADDER.index(best) + 1])
    return rates


def run(method: str, rate: float, seed: int, split: str) -> dict:
    """The key of one training run, and of the split that it is measured on."""
    return {"method": method, "steps": STEPS, "rate": rate, "seed": seed, "split": split}


def measure(_: None, key: dict) -> dict:
    """One row, in a new process."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(in_this_process, key).result()


if __name__ == "__main__":
    settings = {
        **SETTINGS,
        "first_rates": FIRST_RATES,
        "seeds": list(SEEDS),
        "virtual_tokens": VIRTUAL_TOKENS,
        "forward_tokens": FORWARD_TOKENS,
        "adapters": {name: repr(method.config) for name, method in METHODS.items()},
    }
    main(__file__, plan, lambda: None, measure, probe=PROBE, settings=settings, data=DATA)
