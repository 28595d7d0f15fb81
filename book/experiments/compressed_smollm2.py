"""What does SmolLM2 lose when weights, neurons or layers are removed? What does training restore?

    python book/experiments/compressed_smollm2.py            run what is missing of the record
    python book/experiments/compressed_smollm2.py --confirm  after an edit: run one short row again

Texts, calibration and measures are those of `quantized_smollm2`: 40 plain sentences, 20
instructions with answers, and 32 beginnings; calibration on 32 windows of 256 tokens. The model is
as loaded, not rotated: a rotation mixes the weights that pruning tells apart.

A row with "alpha" trains what pruning or dropping layers left, on the course's training texts: the
whole student, or LoRA adapters under the mask. For comparison, the unpruned model is trained too.
Alpha is the weight of cross entropy in the loss; the rest is the KL divergence from the unpruned
model. A seed draws the order of the texts.
"""

import copy
import json

import torch
from quantized_smollm2 import CALIBRATION, START, Models
from record import main
from torch import Tensor, nn

from course_pkg.acceleration.quantization.layerwise import calibrate
from course_pkg.adapters.injection import remove_adapters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train
from course_pkg.pages.experiments import ROOT
from course_pkg.studies.compression.distillation import Distillation, forward_kl
from course_pkg.studies.compression.layer_removal import (
    block_influence,
    evenly_spaced,
    keep_layers,
    most_influential,
)
from course_pkg.studies.compression.masked_lora import adapt_pruned, merge_with_masks
from course_pkg.studies.compression.pruning import (
    Magnitude,
    SemiStructured,
    Unstructured,
    Wanda,
    prune_layers,
)
from course_pkg.studies.compression.sparse_gpt import SparseGPT
from course_pkg.studies.compression.structured import keep_units, remove_units, unit_scores

TRAINING = (CALIBRATION, "dialogues/train.jsonl", "navigator/train.jsonl")
METHODS = {"magnitude": Magnitude, "wanda": Wanda, "sparsegpt": SparseGPT}
STEPS, BATCH, WINDOW = 48, 2, 128  # of the training
RATES = {"layers": 3e-4, "pruned": 1e-3}  # of a whole student, of adapters
RANK = 8
SEEDS = 3
PROBE = {"method": "magnitude", "sparsity": 0.5}
PRUNED = {"method": "sparsegpt", "pattern": "2:4"}
DROPPED = {"method": "layers", "dropped": 6, "which": "influence"}
PLAN = [
    {"method": "none"},
    PROBE,
    *({"method": m, "sparsity": s} for s in (0.3, 0.7) for m in METHODS),
    *({"method": m, "sparsity": 0.5} for m in ("wanda", "sparsegpt")),
    *({"method": m, "pattern": "2:4"} for m in METHODS),
    {"method": "wanda", "sparsity": 0.5, "calibration": "random"},
    *({"method": "neurons", "kept": n, "refit": r} for n in (1152, 768) for r in (False, True)),
    {"method": "heads", "kept": 6, "refit": True},
    *(
        {"method": "layers", "dropped": n, "which": w}
        for n in (3, 6, 9)
        for w in ("even", "influence")
    ),
    *({**DROPPED, "alpha": a, "seed": s} for a in (1.0, 0.5, 0.0) for s in range(SEEDS)),
    *({**PRUNED, "alpha": a, "seed": s} for a in (1.0, 0.5) for s in range(SEEDS)),
    *({"method": "none", "alpha": 1.0, "seed": s} for s in range(SEEDS)),
]


class Compressed(Models):
    """The model, the texts, and the training data."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        super().__init__()
        self.model = self.original  # not rotated
        self.teacher = copy.deepcopy(self.original)
        texts = [text for name in TRAINING for text in self.records(name)]
        self.training = [self.ids(START + text)[0] for text in texts]
        self.influence = None

    @staticmethod
    def records(name: str) -> list[str]:
        """The records of a file of the course, each as one text."""
        lines = (ROOT / "course_pkg/data" / name).read_text("utf-8").splitlines()
        texts = []
        for line in lines:
            record = json.loads(line)
            if "messages" in record:
                texts.append("\n".join(message["content"] for message in record["messages"]))
            else:
                names = ("prompt", "input", "response")
                texts.append("\n".join(record[each] for each in names if each in record))
        return texts

    def smaller(self, key: dict) -> tuple[nn.Module, dict[str, Tensor]]:
        """A model with less in it, as a row's key says, and the masks of its weights."""
        batches = self.calibration[key.get("calibration", "instructions")]
        model = copy.deepcopy(self.model)
        match key["method"]:
            case "none":
                return model, {}
            case "neurons" | "heads":
                unit = key["method"].removesuffix("s")
                statistics = calibrate(model, batches)
                groups = model.config.num_key_value_heads if unit == "head" else 1
                kept = keep_units(unit_scores(model, statistics, unit), key["kept"], groups)
                return remove_units(model, kept, unit, statistics if key["refit"] else None), {}
            case "layers":
                layers = model.config.num_hidden_layers
                keep = layers - key["dropped"]
                if key["which"] == "even":
                    return keep_layers(model, evenly_spaced(layers, keep)), {}
                if self.influence is None:
                    self.influence = block_influence(model, batches)
                return keep_layers(model, most_influential(self.influence, keep)), {}
        if "pattern" in key:
            pattern = SemiStructured(2, 4)
        else:
            per = "layer" if key["method"] == "magnitude" else "row"
            pattern = Unstructured(key["sparsity"], per=per)
        return model, prune_layers(model, METHODS[key["method"]](pattern), batches)

    def recover(self, model: nn.Module, masks: dict[str, Tensor], key: dict) -> None:
        """Train what is left, in place."""
        order = torch.randperm(
            len(self.training), generator=torch.Generator().manual_seed(key["seed"])
        )
        tokens = torch.cat([self.training[index] for index in order.tolist()])
        rows = tokens[: STEPS * BATCH * WINDOW].view(STEPS, BATCH, WINDOW)
        batches = [{"input_ids": row, "labels": row.clone()} for row in rows]
        if masks:
            adapt_pruned(
                model, LoRAConfig(rank=RANK, alpha=2 * RANK, target_modules="all-linear"), masks
            )
        else:
            model.requires_grad_(True)
        config = TrainConfig(
            steps=STEPS,
            learning_rate=RATES["pruned" if masks else "layers"],
            warmup_steps=STEPS // 8,
            schedule="linear",
            shuffle=False,
            seed=key["seed"],
            progress=False,
        )
        trained = model
        if key["alpha"] < 1:
            trained = Distillation(model, self.teacher, alpha=key["alpha"])
        train(trained, batches, config)
        if masks:
            merge_with_masks(model, masks)
            remove_adapters(model)

    @torch.inference_mode()
    def divergence(self, model: nn.Module) -> dict:
        """For each text, the sum over its tokens of KL(unpruned ‖ model), in nats."""
        found = {}
        for kind, texts in self.texts.items():
            found[f"{kind}_kl"] = [
                forward_kl(model(ids).logits[0, :-1], self.teacher(ids).logits[0, :-1]).sum().item()
                for ids in texts
            ]
        return found


def measure(models: Compressed, key: dict) -> dict:
    """Make the model smaller, train it if asked to, and measure it."""
    if not models.chosen and key != {"method": "none"}:
        models.measured(models.model, False)
    model, masks = models.smaller(key)
    if "alpha" in key:
        models.recover(model, masks, key)
    model.eval()
    zeros = sum((~mask).sum().item() for mask in masks.values())
    numbers = {"parameters": sum(p.numel() for p in model.parameters()), "zeros": zeros}
    return {**numbers, **models.measured(model, False), **models.divergence(model)}


if __name__ == "__main__":
    settings = {
        "model": "smollm2-135m",
        "steps": STEPS,
        "batch": BATCH,
        "window": WINDOW,
        "rates": RATES,
        "rank": RANK,
    }
    data = (*TRAINING, "instructions/test.jsonl", "passages/test.jsonl")
    main(__file__, PLAN, Compressed, measure, probe=PROBE, settings=settings, data=data)
