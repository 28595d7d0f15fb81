"""Where does AdaLoRA put its ranks? The ranks of every layer of SmolLM2 after every allocation.

    python book/experiments/adalora_ranks.py            run what is missing of the record
    python book/experiments/adalora_ranks.py --confirm  after an edit: run one short row again

The data, the splits and the number of steps are those of lora_rank. The learning rate is chosen on
the validation split, with one seed. Two runs with other seeds are reported: their held-out loss,
and their ranks, so that one can see whether the ranks say something about the layers.
"""

import torch
from navigator_task import DATA, SEEDS, SETTINGS, STEPS, TUNING_SEED, Task
from record import main

from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.injection import inject, remove_adapters
from course_pkg.adapters.rank_allocator import RankAllocator, orthogonality

ADALORA = {"initial_rank": 6, "target_rank": 2, "tinit": 4, "tfinal": 4, "alpha": 16.0}
RATES, BEST_RATE = (1e-2, 3e-2, 1e-1), 3e-2  # tried, and best on the validation split
PROBE = {"steps": 3, "rate": 3e-2, "seed": 0, "answers": 4}
PLAN = [
    PROBE,
    *({"steps": STEPS, "rate": r, "seed": TUNING_SEED, "split": "validation"} for r in RATES),
    *({"steps": STEPS, "rate": BEST_RATE, "seed": s, "split": "held-out"} for s in SEEDS),
]


def by_kind(ranks: dict[str, int]) -> dict[str, list[int]]:
    """Kind of module, such as q_proj → its rank in every block."""
    found: dict[str, list[int]] = {}
    for module, rank in ranks.items():
        found.setdefault(module.rpartition(".")[2], []).append(rank)
    return found


def measure(task: Task, key: dict) -> dict:
    """One run: train, and note the ranks after each allocation, and the orthogonality penalty."""
    settings = ADALORA | ({"tinit": 1, "tfinal": 1} if key["steps"] < STEPS else {})
    config = AdaLoRAConfig(total_step=key["steps"], **settings)
    inject(task.model, config, generator=torch.Generator().manual_seed(key["seed"]))
    allocator = RankAllocator(task.model)
    before = allocator.extra_loss().item()
    task.train(key["rate"], key["seed"], key["steps"], callback=allocator)
    matrices = [
        matrix
        for layer in allocator.layers.values()
        for matrix in (layer.lora_A["default"], layer.lora_B["default"].T)
    ]
    result = {
        "nll": task.nll(key.get("split", "validation"), key.get("answers")),
        "penalty": [before / config.orth_reg_weight, orthogonality(matrices).item()],
        "allocated_at": [step for step, _ in allocator.allocations],
        "ranks": [by_kind(ranks) for _, ranks in allocator.allocations],
    }
    allocator.prune()
    remove_adapters(task.model)
    return result


if __name__ == "__main__":
    main(__file__, PLAN, Task, measure, probe=PROBE, settings=SETTINGS | ADALORA, data=DATA)
