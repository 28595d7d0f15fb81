"""Which rank, and which target modules? LoRA on SmolLM2, each at a learning rate of its own.

    python book/experiments/lora_rank.py            run what is missing of the record
    python book/experiments/lora_rank.py --confirm  after an edit: run one short row again

Every adapter has alpha / sqrt(rank) as its scale (rsLoRA), so that a large rank is not slowed down
by a small scale. Its learning rate is chosen on the validation split, with one seed, from rates
that reach below and above the best one. The held-out loss is then measured with other seeds.
"""

import statistics
import time

import torch
from navigator_task import DATA, SEEDS, SETTINGS, STEPS, TUNING_SEED, Task
from record import main

from course_pkg.adapters.injection import inject, remove_adapters, trainable_parameters
from course_pkg.adapters.lora import LoRAConfig

ALPHA, USE_RSLORA = 8.0, True
TARGETS = {
    "all": "all-linear",
    "MLP": ["gate_proj", "up_proj", "down_proj"],
    "q, k, v, o": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "q, v": ["q_proj", "v_proj"],
}
# Target modules and rank → the rates tried, and the best of them on the validation split.
# Rank 42 gives q and v about as many parameters as rank 8 gives to all layers.
RATES = {
    ("all", 8): ((1e-3, 3e-3, 1e-2), 3e-3),
    ("q, v", 42): ((1e-3, 3e-3, 1e-2, 3e-2), 3e-3),
    ("all", 1): ((1e-3, 3e-3, 1e-2), 3e-3),
    ("q, v", 8): ((1e-3, 3e-3, 1e-2, 3e-2), 1e-2),
    ("all", 64): ((1e-3, 3e-3, 1e-2), 3e-3),
}
PROBE = {"steps": 2, "targets": "all", "rank": 8, "rate": 1e-3, "seed": 0, "answers": 4}


def plan() -> list[dict]:
    """The rows: the base model, the runs that choose a rate, then the reported runs by seed."""
    base = [{"steps": 0, "split": split} for split in ("validation", "held-out")]
    tuning = [
        run(*adapter, rate, TUNING_SEED, "validation")
        for adapter, (rates, _) in RATES.items()
        for rate in rates
    ]
    reported = [
        run(*adapter, best, seed, "held-out")
        for seed in SEEDS
        for adapter, (_, best) in RATES.items()
    ]
    return [PROBE, *base, *tuning, *reported]


def run(targets: str, rank: int, rate: float, seed: int, split: str) -> dict:
    """The key of one training run, and of the split that it is measured on."""
    key = {"steps": STEPS, "targets": targets, "rank": rank, "rate": rate, "seed": seed}
    return {**key, "split": split}


def measure(task: Task, key: dict) -> dict:
    """One run: train an adapter, measure, and take it out again."""
    split = key.get("split", "validation")
    if key["steps"] == 0:
        return {"nll": task.nll(split)}
    config = LoRAConfig(
        rank=key["rank"],
        alpha=ALPHA,
        target_modules=TARGETS[key["targets"]],
        use_rslora=USE_RSLORA,
    )
    inject(task.model, config, generator=torch.Generator().manual_seed(key["seed"]))
    started = time.process_time()
    history = task.train(key["rate"], key["seed"], key["steps"])
    cpu_seconds = time.process_time() - started
    result = {
        "nll": task.nll(split, key.get("answers")),
        "trained": sum(p.numel() for p in trainable_parameters(task.model).values()),
        "last_losses": statistics.fmean(step.loss for step in history.steps[-5:]),
        "step_cpu_seconds": cpu_seconds / key["steps"],
    }
    remove_adapters(task.model)
    return result


if __name__ == "__main__":
    settings = {**SETTINGS, "alpha": ALPHA, "use_rslora": USE_RSLORA}
    main(__file__, plan(), Task, measure, probe=PROBE, settings=settings, data=DATA)
