"""Is what full fine-tuning changes of low rank? The singular values of its ΔW, and what they carry.

    python book/experiments/lora_delta_w.py            run what is missing of the record
    python book/experiments/lora_delta_w.py --confirm  after an edit: run one short row again

SmolLM2's linear layers are trained in full, all else being frozen, so that LoRA on all linear
layers could have made the same change but for its rank. The data, the splits, the number of steps
and the seeds are those of lora_rank. The learning rate is chosen on the validation split. Then ΔW
of every layer is replaced by its best approximation of rank r, and the held-out loss is measured.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable

import torch
from navigator_task import DATA, SEEDS, SETTINGS, STEPS, TUNING_SEED, Task
from record import main
from torch import Tensor

RATES, BEST_RATE = (1e-4, 3e-4, 1e-3), 3e-4  # tried, and best on the validation split
SHARE_RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 192)
CUT_RANKS = (0, 1, 2, 4, 8, 16, 32, 64)
PROBE = {"of": "ΔW", "rate": 1e-4, "seed": 0, "steps": 1, "layers": 7, "answers": 1}
PLAN = [
    PROBE,
    {"of": "W"},
    {"of": "random"},
    *({"of": "loss", "rate": r, "seed": TUNING_SEED, "split": "validation"} for r in RATES),
    {"of": "ΔW", "rate": BEST_RATE, "seed": SEEDS[0], "steps": STEPS},
    *({"of": "loss", "rate": BEST_RATE, "seed": s, "split": "held-out"} for s in SEEDS[1:]),
]


class FullTask(Task):
    """The task, with a copy of the linear layers' weights to start every run from."""

    def __init__(self) -> None:
        super().__init__()
        self.model.requires_grad_(False)
        self.layers = self.linear_layers()
        self.start = {name: layer.weight.detach().clone() for name, layer in self.layers.items()}

    @torch.no_grad()
    def set_change(self, change: Callable[[str], Tensor | float]) -> None:
        """Let every layer's weight be what it was at the start, plus its change."""
        for name, layer in self.layers.items():
            layer.weight.copy_(self.start[name] + change(name))

    def train_in_full(self, rate: float, seed: int, steps: int) -> dict[str, Tensor]:
        """Train all linear layers' weights from the start; return the change of each."""
        self.set_change(lambda name: 0.0)
        for layer in self.layers.values():
            layer.weight.requires_grad_(True)
        self.train(rate, seed, steps)
        for layer in self.layers.values():
            layer.weight.requires_grad_(False)
        return {name: layer.weight - self.start[name] for name, layer in self.layers.items()}


def spectra(singular_values: dict[str, Tensor]) -> dict[str, dict]:
    """By kind of layer and for all: energy in the top r, and effective rank, over the layers.

    Energy is the share of the squared Frobenius norm. The effective rank is the exponential of
    the entropy of the normalized singular values (Roy & Vetterli 2007). Each is given as
    [least, median, most].
    """
    shares, ranks = defaultdict(list), defaultdict(list)
    for name, s in singular_values.items():
        energy = (s.double() ** 2).cumsum(0) / (s.double() ** 2).sum()
        p = s.double() / s.double().sum()
        entropy = -(p * p.clamp_min(1e-300).log()).sum()
        for kind in (name.rpartition(".")[2], "all"):
            shares[kind].append([energy[min(r, len(s)) - 1].item() for r in SHARE_RANKS])
            ranks[kind].append(entropy.exp().item())
    return {
        kind: {
            "share": [spread(column) for column in zip(*shares[kind], strict=True)],
            "effective_rank": spread(ranks[kind]),
            "layers": len(ranks[kind]),
        }
        for kind in ranks
    }


def spread(values: list[float] | tuple[float, ...]) -> list[float]:
    """The least, the median and the greatest."""
    return [min(values), statistics.median(values), max(values)]


def measure(task: FullTask, key: dict) -> dict:
    """One row of the plan."""
    if key["of"] == "W":
        return {"spectra": spectra({n: torch.linalg.svdvals(w) for n, w in task.start.items()})}
    if key["of"] == "random":
        generator = torch.Generator().manual_seed(0)
        drawn = {n: torch.randn(w.shape, generator=generator) for n, w in task.start.items()}
        return {"spectra": spectra({n: torch.linalg.svdvals(w) for n, w in drawn.items()})}
    change = task.train_in_full(key["rate"], key["seed"], key.get("steps", STEPS))
    if key["of"] == "loss":
        return {"nll": task.nll(key["split"])}
    answers = key.get("answers")
    full = task.nll("held-out", answers)
    change = dict(list(change.items())[: key.get("layers")])
    factors = {n: torch.linalg.svd(c, full_matrices=False) for n, c in change.items()}
    sizes = [(c.norm() / task.start[n].norm()).item() for n, c in change.items()]

    def cut(name: str, rank: int) -> Tensor | float:
        if name not in factors:
            return 0.0
        u, s, vh = factors[name]
        return (u[:, :rank] * s[:rank]) @ vh[:rank]

    losses = []
    for rank in CUT_RANKS:
        task.set_change(lambda name, rank=rank: cut(name, rank))
        losses.append(task.nll("held-out", answers))
    return {
        "nll": full,
        "cut_ranks": CUT_RANKS,
        "cut_nll": losses,
        "relative_size": spread(sizes),
        "share_ranks": SHARE_RANKS,
        "spectra": spectra({name: s for name, (_, s, _) in factors.items()}),
    }


if __name__ == "__main__":
    main(__file__, PLAN, FullTask, measure, probe=PROBE, settings=SETTINGS, data=DATA)
