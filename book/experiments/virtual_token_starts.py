"""What does the starting value of virtual tokens do? Short training runs of SmolLM2, by start.

    python book/experiments/virtual_token_starts.py            run what is missing of the record
    python book/experiments/virtual_token_starts.py --confirm  after an edit: run a short row again

Each start is trained at several learning rates with one seed. A row has the loss of every step,
and the loss on the validation split, on which the page chooses the rate, and on held-out answers,
which it reports. LoRA, which starts without effect, is the baseline.
"""

import torch
from navigator_task import DATA, SETTINGS, Task
from record import main
from torch import nn

from course_pkg.adapters.injection import inject, remove_adapters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.prefixes import PrefixTunedModel, PrefixTuningConfig
from course_pkg.adapters.prompts import PromptTunedModel, PromptTuningConfig
from course_pkg.lm.load import load

STEPS, ANSWERS, SEED, TOKENS = 10, 12, 0, 20
TEXT = "Answer in three lines that begin with LOG:, CAUSE: and ORDERS:"
# Start → the learning rates tried.
RATES = {
    "LoRA": (1e-3, 3e-3, 1e-2),
    "prompt, text": (1e-2, 3e-2, 1e-1),
    "prompt, vocabulary": (1e-2, 3e-2, 1e-1),
    "prompt, random": (3e-2, 1e-1, 3e-1, 1.0),
    "prefix, zero": (1e-2, 3e-2, 1e-1, 3e-1, 1.0),
    "prefix, MLP": (1e-3, 3e-3, 1e-2),
    "prefix, random": (3e-3, 1e-2, 3e-2, 1e-1, 3e-1),
}
PROBE = {"start": "prefix, MLP", "rate": 1e-3, "steps": 2, "answers": 4}


def plan() -> list[dict]:
    """The rows: the probe, and every start untrained and at each of its rates."""
    untrained = [run(start, 0.0, 0) for start in ("none", *RATES)]
    trained = [run(start, rate, STEPS) for start, rates in RATES.items() for rate in rates]
    return [PROBE, *untrained, *trained]


def run(start: str, rate: float, steps: int) -> dict:
    """The key of one row."""
    return {"start": start, "rate": rate, "steps": steps, "answers": ANSWERS}


def adapted(base: nn.Module, start: str) -> nn.Module:
    """The model to train from a start."""
    generator = torch.Generator().manual_seed(SEED)
    if start == "LoRA":
        inject(base, LoRAConfig(rank=8), generator=generator)
        return base
    method, how = start.split(", ")
    if method == "prefix":
        mlp = how == "MLP"
        config = PrefixTuningConfig(TOKENS, reparametrize=mlp, init="random" if mlp else how)
        return PrefixTunedModel(base, config, generator=generator)
    config = PromptTuningConfig(TOKENS, init="vocabulary" if how == "text" else how)
    if how == "text":
        config = PromptTuningConfig.from_text(TEXT, load(SETTINGS["model"]).tokenizer, TOKENS)
    return PromptTunedModel(base, config, generator=generator)


def measure(task: Task, key: dict) -> dict:
    """One run: adapt the model, train, measure, and restore the model."""
    base, start = task.model, key["start"]
    task.model = base if start == "none" else adapted(base, start)
    losses = task.train(key["rate"], SEED, key["steps"]).losses if key["steps"] else []
    result = {"losses": list(losses)}
    for split in ("validation", "held-out"):
        result[split] = task.nll(split, key["answers"])
    task.model = base
    if start == "LoRA":
        remove_adapters(base)
    return result


if __name__ == "__main__":
    settings = {**SETTINGS, "steps": STEPS, "virtual_tokens": TOKENS, "text": TEXT}
    main(__file__, plan(), Task, measure, probe=PROBE, settings=settings, data=DATA)
