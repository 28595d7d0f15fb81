"""Does AdaLoRA find out which layers need ranks? Three small layers with a known answer.

    python book/experiments/adalora_allocation.py            run what is missing of the record
    python book/experiments/adalora_allocation.py --confirm  after an edit: run one short row again

The layers must learn changes of rank 4, 2 and 0. A row has a number of steps and a factor of the
penalty: the ranks that each seed ends with, and those after each allocation of the first seed.
"""

import torch
from record import main
from torch import nn

from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.injection import inject, trainable_parameters
from course_pkg.adapters.rank_allocator import RankAllocator

NEEDED, WIDTH, RATE, SEEDS = (4, 2, 0), 16, 0.02, 12
STEPS, PENALTIES = (300, 30), (0.1, 0.5, 0.0)
PROBE = {"steps": 30, "penalty": 0.1}
PLAN = [{"steps": steps, "penalty": penalty} for steps in STEPS for penalty in PENALTIES]


def find_ranks(seed: int, steps: int, penalty: float) -> list[list[int]]:
    """The ranks of the three layers after each allocation; `penalty` is γ."""
    torch.manual_seed(seed)
    model = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in NEEDED)
    changes = [torch.randn(WIDTH, r) @ torch.randn(r, WIDTH) / WIDTH for r in NEEDED]
    targets = [layer.weight.detach() + T for layer, T in zip(model, changes, strict=True)]
    ends = {"tinit": steps // 5, "tfinal": steps // 5}
    config = AdaLoRAConfig(steps, 4, 2, orth_reg_weight=penalty, **ends)
    inject(model, config)
    allocator = RankAllocator(model)
    allocator.start(model, steps)  # 1
    optimizer = torch.optim.AdamW(trainable_parameters(model).values(), lr=RATE)
    for step in range(1, steps + 1):
        x = torch.randn(64, WIDTH)
        loss = sum((layer(x) - x @ W.T).square().mean()
                   for layer, W in zip(model, targets, strict=True))  # fmt: skip
        optimizer.zero_grad()
        (loss + allocator.extra_loss()).backward()  # 2
        optimizer.step()
        allocator.after_step(step)  # 3
    return [list(ranks.values()) for _, ranks in allocator.allocations]


def measure(_: None, key: dict) -> dict:
    """The last ranks of every seed, and all ranks of the first seed."""
    paths = [find_ranks(seed, **key) for seed in range(SEEDS)]
    return {"last": [path[-1] for path in paths], "path": paths[0]}


if __name__ == "__main__":
    settings = {"needed": list(NEEDED), "width": WIDTH, "rate": RATE, "seeds": SEEDS}
    main(__file__, PLAN, lambda: None, measure, probe=PROBE, settings=settings)
