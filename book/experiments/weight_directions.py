"""How do magnitude and direction change? Full fine-tuning, LoRA and DoRA; and PiSSA's loss.

    python book/experiments/weight_directions.py            run what is missing of the record
    python book/experiments/weight_directions.py --confirm  after an edit: run one short row again

The data, the splits and the number of steps are those of lora_rank. The rates of LoRA and of full
fine-tuning are those that lora_rank and lora_delta_w chose on the validation split; DoRA's and
PiSSA's are chosen here in the same way. Then, with other seeds, the change of the rows' norms and
directions is measured in the query and value projections, as in section 3.2 of the DoRA paper.
"""

import torch
from lora_delta_w import BEST_RATE, FullTask
from lora_rank import ALPHA, RATES, USE_RSLORA
from navigator_task import DATA, SEEDS, SETTINGS, STEPS, TUNING_SEED
from record import main
from torch import Tensor

from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.injection import (
    adapter_layers,
    inject,
    remove_adapters,
    trainable_parameters,
)
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.pissa import principal_factors, start_from_principal
from course_pkg.finetuning.config import Callback

RANK = 8
MEASURED_AT = (5, 10, 15, 20)  # steps
KINDS = ("q_proj", "v_proj")
BEST = {"full": BEST_RATE, "LoRA": RATES["all", RANK][1], "DoRA": 3e-3, "PiSSA": 3e-4}
TRIED = {"DoRA": (1e-3, 3e-3, 1e-2), "PiSSA": (1e-4, 3e-4, 1e-3)}
PROBE = {"method": "DoRA", "rate": 3e-3, "seed": 0, "steps": 2, "answers": 2}


def plan() -> list[dict]:
    """The rows: the short one, the runs that choose a rate, then the reported runs."""
    tuning = [
        run(method, rate, TUNING_SEED, "validation")
        for method, rates in TRIED.items()
        for rate in rates
    ]
    reported = [run(m, rate, seed, "held-out") for seed in SEEDS for m, rate in BEST.items()]
    return [PROBE, *tuning, *reported]


def run(method: str, rate: float, seed: int, split: str) -> dict:
    """The key of one training run, and of the split that it is measured on."""
    return {"method": method, "rate": rate, "seed": seed, "split": split, "steps": STEPS}


class Directions(Callback):
    """Notes, at some steps, how far the rows' norms and directions are from those at the start."""

    def __init__(self, start: dict[str, Tensor], steps: tuple[int, ...]) -> None:
        self.before = {name: W for name, W in start.items() if name.endswith(KINDS)}
        self.steps, self.found = steps, []

    def start(self, model: torch.nn.Module, steps: int) -> None:
        """Find the layers with these weights in the model."""
        found = adapter_layers(model) or dict(model.named_modules())
        self.layers = {name: found[name] for name in self.before}

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Note the changes of every layer, if it is time."""
        if step in self.steps:
            changes = {kind: [] for kind in KINDS}
            for name, layer in self.layers.items():
                merged = getattr(layer, "merged_weight", None)
                after = merged() if merged else layer.weight
                changes[name.rpartition(".")[2]].append(changed(self.before[name], after))
            self.found.append(changes)


def changed(before: Tensor, after: Tensor) -> tuple[float, float]:
    """Mean change of the rows' norms, relative to the mean norm, and 1 - cosine of the rows.

    The DoRA paper's equations for ΔM and ΔD; there, the first is not divided by the mean norm.
    """
    norms = torch.linalg.vector_norm(before, dim=1), torch.linalg.vector_norm(after, dim=1)
    cosines = (before.double() * after.double()).sum(1) / (norms[0] * norms[1])
    return ((norms[1] - norms[0]).abs().mean() / norms[0].mean()).item(), (
        1 - cosines
    ).mean().item()


class DirectionTask(FullTask):
    """The task, and the factors that PiSSA starts from."""

    factors: dict[str, tuple[Tensor, Tensor]] | None = None

    def prepare(self, method: str, seed: int) -> None:
        """Make the model ready for a training run with a method."""
        self.set_change(lambda name: 0.0)
        if method == "full":
            for layer in self.layers.values():
                layer.weight.requires_grad_(True)
            return
        kind = DoRAConfig if method == "DoRA" else LoRAConfig
        config = kind(rank=RANK, alpha=ALPHA, use_rslora=USE_RSLORA)
        inject(self.model, config, generator=torch.Generator().manual_seed(seed))
        if method == "PiSSA":
            self.factors = self.factors or {
                name: principal_factors(W, RANK) for name, W in self.start.items()
            }
            start_from_principal(self.model, factors=self.factors)

    def restore(self) -> None:
        """Remove what `prepare` did."""
        remove_adapters(self.model)
        self.model.requires_grad_(False)
        self.set_change(lambda name: 0.0)


def measure(task: DirectionTask, key: dict) -> dict:
    """One run: train, noting the changes if the run is a reported one, and measure the loss."""
    split = key.get("split", "validation")
    steps = () if split == "validation" and key["steps"] == STEPS else MEASURED_AT
    directions = Directions(task.start, (key["steps"],) if key["steps"] < STEPS else steps)
    task.prepare(key["method"], key["seed"])
    trained = sum(p.numel() for p in trainable_parameters(task.model).values())
    task.train(key["rate"], key["seed"], key["steps"], callback=directions)
    result = {"nll": task.nll(split, key.get("answers")), "trained": trained}
    if directions.found:
        result |= {"measured_at": list(directions.steps), "changes": directions.found}
    task.restore()
    return result


if __name__ == "__main__":
    settings = {**SETTINGS, "rank": RANK, "alpha": ALPHA, "use_rslora": USE_RSLORA}
    main(__file__, plan(), DirectionTask, measure, probe=PROBE, settings=settings, data=DATA)
