"""Which rank, and which target modules? LoRA on SmolLM2, three seeds each.

    python book/experiments/lora_rank.py            run what is missing of the record
    python book/experiments/lora_rank.py --confirm  after an edit: run one short row again

One question is put at a time: the rank, with adapters on all linear layers; the target modules
at the same rank; the target modules at about the same number of trained parameters. Alpha, the
learning rate and the number of steps are the same in every run.
"""

import statistics
import time

import torch
from navigator_task import DATA, SETTINGS, STEPS, Task
from record import main

from course_pkg.adapters.injection import inject_lora, remove_lora, trainable_parameters
from course_pkg.adapters.lora import LoRAConfig

ALPHA, LEARNING_RATE, SEEDS = 16.0, 1e-3, (0, 1, 2)
RANKS = (1, 2, 4, 8, 16, 64)
TARGETS = {  # with the rank at which they have about as many parameters as all layers at rank 8
    "q, v": (["q_proj", "v_proj"], 42),
    "q, k, v, o": (["q_proj", "k_proj", "v_proj", "o_proj"], 21),
    "MLP": (["gate_proj", "up_proj", "down_proj"], 13),
    "all": ("all-linear", 8),
}
PROBE = {"steps": 2, "targets": "all", "rank": 8, "seed": 0, "held_out": 4}


def plan() -> list[dict]:
    """The rows, seed by seed, so that a sweep that is stopped has compared what it has."""
    runs = [("all", rank) for rank in RANKS]
    runs += [(name, rank) for name, (_, equal) in TARGETS.items() for rank in (8, equal)]
    runs = list(dict.fromkeys(runs))
    base = [{"steps": 0, "held_out": SETTINGS["held_out"]}]
    return [
        PROBE,
        *base,
        *({"steps": STEPS, "targets": t, "rank": r, "seed": s} for s in SEEDS for t, r in runs),
    ]


def measure(task: Task, key: dict) -> dict:
    """One run: train an adapter, measure, and take it out again."""
    held_out = key.get("held_out", SETTINGS["held_out"])
    if key["steps"] == 0:
        return {"nll": task.held_out_nll(held_out)}
    config = LoRAConfig(rank=key["rank"], alpha=ALPHA, target_modules=TARGETS[key["targets"]][0])
    inject_lora(task.model, config, generator=torch.Generator().manual_seed(key["seed"]))
    started = time.process_time()
    history = task.train(LEARNING_RATE, key["seed"], key["steps"])
    cpu_seconds = time.process_time() - started
    result = {
        "nll": task.held_out_nll(held_out),
        "trained": sum(p.numel() for p in trainable_parameters(task.model).values()),
        "last_losses": statistics.fmean(step.loss for step in history.steps[-5:]),
        "step_seconds": statistics.median(step.seconds for step in history.steps),
        "step_cpu_seconds": cpu_seconds / key["steps"],
    }
    remove_lora(task.model)
    return result


if __name__ == "__main__":
    settings = {**SETTINGS, "alpha": ALPHA, "learning_rate": LEARNING_RATE}
    main(__file__, plan(), Task, measure, probe=PROBE, settings=settings, data=DATA)
