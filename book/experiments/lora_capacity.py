"""Where can LoRA lose to full fine-tuning? A small network learns random pairs by heart.

    python book/experiments/lora_capacity.py            run what is missing of the record
    python book/experiments/lora_capacity.py --confirm  after an edit: run one short row again

A pair is a random key of three symbols and a random value of one. The network, an embedding and
residual blocks like the feed-forward half of a Transformer's, is trained from scratch on old pairs,
until it knows them. Then each method learns new pairs, with other keys, for a fixed number of
steps. What counts is the share of the new values that the network then predicts, and the share of
the old ones that it still predicts. There is nothing to generalize: the pairs are random. For each
number of pairs, each method has the best of several rates, which are tried with one seed; as long
as the best is at an edge, another is added. The seed draws new pairs and the adapter.
"""

import copy
import time

import torch
from rate_ladder import rates_to_try
from record import main
from torch import Tensor, nn
from torch.nn import functional as F

from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig

SYMBOLS, KEY_LENGTH = 64, 3
WIDTH, BLOCKS = 64, 2
OLD, OLD_STEPS, OLD_RATE = 256, 400, 3e-3
NEW = (64, 256, 1024)
STEPS, BATCH, WARMUP = 600, 128, 20
RANKS = (1, 4, 16, 64)
METHODS = ("full", *(f"rank {rank}" for rank in RANKS))
LADDER = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
FIRST_RATES = {"full": (1e-3, 3e-3, 1e-2)} | {f"rank {r}": (3e-3, 1e-2, 3e-2) for r in RANKS}
TUNING_SEED, SEEDS = 0, (1, 2, 3)
PROBE = {"method": "rank 4", "pairs": 64, "steps": 20, "rate": 1e-2, "seed": 0}


class Network(nn.Module):
    """Three symbols in, the logits of a fourth out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH // 4)
        self.read = nn.Linear(KEY_LENGTH * WIDTH // 4, WIDTH)
        self.up = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(BLOCKS))
        self.down = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, keys: Tensor) -> Tensor:
        """The logits, (pairs, symbols), of keys, (pairs, KEY_LENGTH)."""
        h = self.read(self.embedding(keys).flatten(1))
        for up, down in zip(self.up, self.down, strict=True):
            h = h + down(F.relu(up(F.layer_norm(h, (WIDTH,)))))
        return self.head(F.layer_norm(h, (WIDTH,)))


class Base:
    """The model, trained on the old pairs."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = Network()
        self.keys = torch.randperm(SYMBOLS**KEY_LENGTH, generator=torch.Generator().manual_seed(0))
        self.old = self.pairs(0, OLD, seed=0)
        fit(self.model, self.old, OLD_STEPS, OLD_RATE, seed=0)
        self.before = known(self.model, self.old)

    def pairs(self, start: int, count: int, seed: int) -> Tensor:
        """Pairs as rows of symbols: a key that no other pair has, and a random value."""
        numbers = self.keys[start : start + count]
        digits = [numbers // SYMBOLS**place % SYMBOLS for place in range(KEY_LENGTH)]
        generator = torch.Generator().manual_seed(seed)
        return torch.stack([*digits, torch.randint(SYMBOLS, (count,), generator=generator)], 1)


def fit(model: nn.Module, pairs: Tensor, steps: int, rate: float, seed: int) -> list[float]:
    """Train what requires a gradient with Adam, a warmup and a linear decay; the losses."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=rate, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARMUP, (steps - step) / max(steps - WARMUP, 1))
    )
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.long)
    losses = []
    for _ in range(steps):
        while len(order) < BATCH:
            order = torch.cat([order, torch.randperm(len(pairs), generator=generator)])
        rows, order = pairs[order[:BATCH]], order[BATCH:]
        loss = F.cross_entropy(model(rows[:, :-1]), rows[:, -1])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def known(model: nn.Module, pairs: Tensor) -> float:
    """The share of the values that the model predicts."""
    return (model(pairs[:, :-1]).argmax(-1) == pairs[:, -1]).float().mean().item()


@torch.no_grad()
def nats(model: nn.Module, pairs: Tensor) -> float:
    """The mean loss of the values."""
    return F.cross_entropy(model(pairs[:, :-1]), pairs[:, -1]).item()


def measure(base: Base, key: dict) -> dict:
    """One training run on new pairs."""
    new = base.pairs(OLD + key["seed"] * max(NEW), key["pairs"], seed=100 + key["seed"])
    model = copy.deepcopy(base.model)
    if key["method"] != "full":
        config = LoRAConfig(
            rank=int(key["method"].split()[1]),
            alpha=8.0,
            target_modules=[
                "read",
                *(f"{way}.{at}" for way in ("up", "down") for at in range(BLOCKS)),
            ],
            use_rslora=True,
        )
        inject(model, config, generator=torch.Generator().manual_seed(key["seed"]))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    started = time.process_time()
    fit(model, new, key["steps"], key["rate"], key["seed"])
    return {
        "trained": trained,
        "new_known": known(model, new),
        "new_nats": nats(model, new),
        "old_known_before": base.before,
        "old_known": known(model, base.old),
        "old_nats": nats(model, base.old),
        "cpu_seconds": time.process_time() - started,
    }


def run(method: str, pairs: int, rate: float, seed: int) -> dict:
    """The key of a training run."""
    return {"method": method, "pairs": pairs, "steps": STEPS, "rate": rate, "seed": seed}


def plan(rows: list[dict]) -> list[dict]:
    """The rates to try, then the reported runs of each cell whose rate is chosen."""
    tuning, reported = [], []
    for pairs in NEW:
        for method in METHODS:
            tried = {
                row["rate"]: row["new_nats"]
                for row in rows
                if (row["method"], row["pairs"], row["steps"], row["seed"])
                == (method, pairs, STEPS, TUNING_SEED)
            }
            rates, best = rates_to_try(tried, FIRST_RATES[method], LADDER)
            if best is not None:
                reported += [run(method, pairs, best, seed) for seed in SEEDS]
            tuning += [run(method, pairs, rate, TUNING_SEED) for rate in rates]
    return [PROBE, *tuning, *reported]


if __name__ == "__main__":
    settings = {
        "symbols": SYMBOLS,
        "key_length": KEY_LENGTH,
        "width": WIDTH,
        "blocks": BLOCKS,
        "old": OLD,
        "old_steps": OLD_STEPS,
        "new": list(NEW),
        "steps": STEPS,
        "batch": BATCH,
        "seeds": list(SEEDS),
    }
    main(__file__, plan, Base, measure, probe=PROBE, settings=settings)
