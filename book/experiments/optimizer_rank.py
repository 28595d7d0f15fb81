"""Where does the rank of full fine-tuning's change come from? Its gradient, Adam's step, and SGD.

    python book/experiments/optimizer_rank.py            run what is missing of the record
    python book/experiments/optimizer_rank.py --confirm  after an edit: run one short row again

The first batch's gradient is compared with the first step that Adam makes of it, which divides each
entry by its own size. Then as many steps as in lora_delta_w are taken by plain SGD, with the same
data, seeds, splits, schedule and clipping, and a rate chosen on the validation split.
"""

import torch
from lora_delta_w import FullTask, spectra
from navigator_task import BATCH, DATA, SEEDS, SETTINGS, STEPS, TUNING_SEED, WARMUP
from record import main
from torch import Tensor, nn

from course_pkg.finetuning.batches import batches
from course_pkg.finetuning.config import TrainConfig, learning_rate_at

ADAM_EPSILON = 1e-8
RATES, BEST_RATE = (0.1, 0.3, 1.0), 0.3  # of SGD: tried, and best on the validation split
PROBE = {"of": "gradient", "seed": 0, "layers": 7}
PLAN = [
    PROBE,
    {"of": "gradient", "seed": SEEDS[0]},
    *({"of": "SGD", "rate": r, "seed": TUNING_SEED, "split": "validation"} for r in RATES),
    {"of": "SGD", "rate": BEST_RATE, "seed": SEEDS[0], "split": "held-out"},
]


def gradients(task: FullTask, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The clipped gradient of each linear layer's weight."""
    task.model.train()
    for layer in task.layers.values():
        layer.weight.requires_grad_(True)
        layer.weight.grad = None
    task.model(**batch).loss.backward()
    nn.utils.clip_grad_norm_([layer.weight for layer in task.layers.values()], 1.0)
    for layer in task.layers.values():
        layer.weight.requires_grad_(False)
    return {name: layer.weight.grad for name, layer in task.layers.items()}


def singular_values(matrices: dict[str, Tensor], count: int | None) -> dict[str, Tensor]:
    """Those of the first `count` matrices, or of all."""
    return {name: torch.linalg.svdvals(m) for name, m in list(matrices.items())[:count]}


def measure(task: FullTask, key: dict) -> dict:
    """One row of the plan."""
    count = key.get("layers")
    data = list(batches(task.examples, BATCH, task.pad, seed=key["seed"]))
    task.set_change(lambda name: 0.0)
    if key["of"] == "gradient":
        gradient = gradients(task, data[0])
        step = {name: g / (g.abs() + ADAM_EPSILON) for name, g in gradient.items()}
        return {
            "tokens": int(data[0]["attention_mask"].sum()),
            "spectra": spectra(singular_values(gradient, count)),
            "adam_spectra": spectra(singular_values(step, count)),
        }
    config = TrainConfig(steps=STEPS, learning_rate=key["rate"], warmup_steps=WARMUP)
    change = {name: torch.zeros_like(weight) for name, weight in task.start.items()}
    for number in range(1, STEPS + 1):
        for name, g in gradients(task, data[number - 1]).items():
            change[name] -= learning_rate_at(number, config) * g
        task.set_change(change.get)
    result = {"nll": task.nll(key["split"])}
    if key["split"] == "held-out":
        result["spectra"] = spectra(singular_values(change, count))
    return result


if __name__ == "__main__":
    main(__file__, PLAN, FullTask, measure, probe=PROBE, settings=SETTINGS, data=DATA)
