"""What do 4 bits cost SmolLM2: when it is rounded, after training, and after merging?

    python book/experiments/qlora_smollm2.py            run what is missing of the record
    python book/experiments/qlora_smollm2.py --confirm  after an edit: run one short row again

The weights are rotated first, which takes them off the 4-bit grid of SmolLM2's file. Rows of codes
have the loss of every passage in each 4-bit code. Rows of runs have the loss of every held-out
answer after training an adapter, with the adapter apart and merged, and the share of the 4-bit
codes that merging changes. The learning rate is the one that `peft_methods` chose.
"""

import copy
import math

import torch
from navigator_task import BATCH, DATA, SETTINGS, WARMUP, Task
from record import main
from torch import Tensor, nn
from torch.nn import functional as F

from course_pkg.acceleration.quantization.rotation import rotate_residual_stream
from course_pkg.adapters.injection import adapter_layers, inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.qlora import Linear4bit, merge_quantized, quantize_model, requantized
from course_pkg.finetuning.batches import batches
from course_pkg.finetuning.config import Callback, TrainConfig
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load
from course_pkg.metrics.perplexity import token_log_probs
from course_pkg.pages.datasets import load_texts

STEPS, RANK, SEEDS = 48, 8, (1, 2, 3)
COUNTED = (6, 12, 24, 48)  # the steps after which changed codes are counted; losses, at the end
RATE = 1e-3
CODES = {
    "unquantized": None,
    "INT4": ("int4", False),
    "FP4": ("fp4", False),
    "NF4": ("nf4", False),
    "NF4, double": ("nf4", True),
}
PROBE = {"code": "NF4, double", "texts": 2}


class Rotated(Task):
    """The navigator's task on rotated weights, and the passages as lists of ids."""

    def __init__(self) -> None:
        super().__init__()
        self.model = rotate_residual_stream(self.model)
        tokenizer = load(SETTINGS["model"]).tokenizer
        start = tokenizer("<|endoftext|>").input_ids
        self.texts = [start + tokenizer(text).input_ids for text in load_texts("passages")]


class CodeCounter(Callback):
    """A callback that counts, on the way, the codes that merging would change."""

    def __init__(self) -> None:
        self.changed: list[list[float]] = []

    def start(self, model: nn.Module, steps: int) -> None:
        self.model = model

    def after_step(self, step: int) -> None:
        if step in COUNTED:
            self.changed.append([step, changed_share(self.model)])


def measure(task: Rotated, key: dict) -> dict:
    """One row: the passages in one code, or one training run."""
    if "code" in key:
        return measure_code(task, key)
    model = copy.deepcopy(task.model)
    quantize_model(model)
    if key["run"] == "rounded":
        return {"apart": answer_losses(model, task)}
    generator = torch.Generator().manual_seed(key["seed"])
    config = LoRAConfig(rank=RANK, target_modules="all-linear")
    inject(model, config, generator=generator)
    data = list(batches(task.examples, BATCH, task.pad, seed=key["seed"]))
    train_config = TrainConfig(
        steps=STEPS,
        learning_rate=key["rate"],
        warmup_steps=WARMUP,
        shuffle=False,
        seed=key["seed"],
        progress=False,
    )
    counter = CodeCounter()
    history = train(model, data, train_config, callback=counter)
    return {
        "losses": [step.loss for step in history.steps],
        "apart": answer_losses(model, task),
        "changed": counter.changed,
        "merged_16_bits": answer_losses(merged_in_16_bits(model), task),
        "merged_4_bits": answer_losses(merged_in_4_bits(model), task),
    }


def measure_code(task: Rotated, key: dict) -> dict:
    """Nats and tokens of each passage; the relative error of all quantized weights together."""
    model = task.model
    result = {}
    if CODES[key["code"]] is not None:
        book, double = CODES[key["code"]]
        model = copy.deepcopy(model)
        quantize_model(model, book, double=double)
        wrong = total = 0.0
        for name, module in model.named_modules():
            if isinstance(module, Linear4bit):
                exact = task.model.get_submodule(name).weight
                wrong += (module.dequantized_weight() - exact).square().sum().item()
                total += exact.square().sum().item()
        result["weight_error"] = math.sqrt(wrong / total)
    scores = token_log_probs(model, task.texts[: key["texts"]])
    return result | {
        "nats": [-each.sum().item() for each in scores],
        "tokens": [len(each) for each in scores],
    }


@torch.no_grad()
def answer_losses(model: nn.Module, task: Task) -> list[float]:
    """The mean loss of each held-out answer, in nats per token."""
    training = model.training
    model.eval()
    found = []
    for batch in batches(task.splits["held-out"], 6, task.pad):
        labels = batch["labels"][:, 1:]
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        logits = model(**inputs, use_cache=False).logits[:, :-1]
        losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        found += (losses.sum(1) / (labels != -100).sum(1)).tolist()
    model.train(training)
    return found


def halves(codes: Tensor) -> Tensor:
    """The two 4-bit codes of each byte."""
    return torch.stack([codes >> 4, codes & 15])


@torch.no_grad()
def changed_share(model: nn.Module) -> float:
    """The share of all 4-bit codes that merging changes."""
    changed = total = 0
    for layer in adapter_layers(model).values():
        before, after = halves(layer.base.weight), halves(requantized(layer).weight)
        changed += (before != after).sum().item()
        total += before.numel()
    return changed / total


def merged_in_4_bits(model: nn.Module) -> nn.Module:
    """A copy with the adapters merged and everything rounded to 4 bits again."""
    merged = copy.deepcopy(model)
    merge_quantized(merged)
    return merged


def merged_in_16_bits(model: nn.Module) -> nn.Module:
    """A copy with the adapters merged into dequantized weights, rounded to bfloat16."""
    merged = copy.deepcopy(model)
    for name, layer in adapter_layers(merged).items():
        linear = nn.Linear(layer.base.in_features, layer.base.out_features, bias=False)
        linear.weight.data = layer.merged_weight().bfloat16().float()
        merged.set_submodule(name, linear)
    return merged


def plan() -> list[dict]:
    """The rows: the codes, the quantized model before training, and a run for each seed."""
    count = len(load_texts("passages"))
    codes = [{"code": code, "texts": count} for code in CODES]
    runs = [{"run": "QLoRA", "steps": STEPS, "rate": RATE, "seed": seed} for seed in SEEDS]
    return [PROBE, {"run": "rounded", "steps": 0}, *codes, *runs]


if __name__ == "__main__":
    torch.set_num_threads(1)
    settings = {**SETTINGS, "steps": STEPS, "rank": RANK, "seeds": list(SEEDS), "rate": RATE}
    data = (*DATA, "passages/test.jsonl")
    main(__file__, plan(), Rotated, measure, probe=PROBE, settings=settings, data=data)
