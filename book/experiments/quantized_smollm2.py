"""What does SmolLM2 lose when it is quantized? By method, number of bits and group size.

    python book/experiments/quantized_smollm2.py            run what is missing of the record
    python book/experiments/quantized_smollm2.py --confirm  after an edit: run one short row again

SmolLM2's file lies on a 4-bit grid, on which 4 bits lose nothing. So the residual stream is rotated
first, which keeps the model's function and spreads its weights. The linear layers of all blocks
are quantized; the embeddings and the head stay in fp32. Calibration: 32 windows of 256 tokens of
the course's training instructions; for one row, of random tokens.

The rows with a "rotation" start from other rotations, to show how much of a difference is chance.
"served" is what the engine computes: the model from its file, in the engine's formats and in bf16.

Measured on texts that no method has seen: 40 plain sentences and 20 instructions with answers. For
each, the loss, and at how many of its positions the most probable next token is another one than
without quantization. Then 32 beginnings that most people can complete.
"""

import copy
import json
from functools import partial

import torch
import torch.nn.functional as F
from completions import COMPLETIONS
from record import main
from torch import Tensor, nn

from course_pkg.acceleration.quantization.awq import AWQ
from course_pkg.acceleration.quantization.blockwise import quantize
from course_pkg.acceleration.quantization.gguf_blocks import write_gguf
from course_pkg.acceleration.quantization.gptq import GPTQ
from course_pkg.acceleration.quantization.grouped import Grid
from course_pkg.acceleration.quantization.int8 import Activations, int8_weight
from course_pkg.acceleration.quantization.layerwise import (
    EachWeight,
    RoundToNearest,
    quantize_layers,
)
from course_pkg.acceleration.quantization.llm_int8 import llm_int8_weight
from course_pkg.acceleration.quantization.quantized_decoder import quantize_decoder
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.acceleration.quantization.rotation import rotate_residual_stream
from course_pkg.acceleration.quantization.smoothquant import FOLDED, input_maxima, smooth
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.load import load
from course_pkg.pages.datasets import load_texts
from course_pkg.pages.experiments import ROOT
from course_pkg.serving.kv_cache import ContiguousCache

DATA = ROOT / "course_pkg/data"
START = "<|endoftext|>"  # what stands between texts in the pre-training of SmolLM2
WINDOWS, WINDOW, BATCH = 32, 256, 4
INSTRUCTIONS = 20
CALIBRATION = "instructions/train.jsonl"
PROBE = {"method": "rounding", "bits": 4, "group": 64}
Q4_1 = {"method": "gguf", "format": "Q4_1"}
PLAN = [
    {"method": "none"},
    {"method": "bf16"},
    {"method": "kv8"},
    *({"method": "w8a8", "per": per} for per in ("tensor", "row")),
    *({"method": "w8a8", "per": "row", "smooth": alpha} for alpha in (0.3, 0.5, 0.8)),
    *({"method": "w8a8", "per": "tensor", "smooth": alpha} for alpha in (0.3, 0.5, 0.8)),
    {"method": "w8a16"},
    {"method": "llm.int8"},
    PROBE,
    *({"method": "rounding", "bits": bits, "group": 64} for bits in (3, 2)),
    *({"method": "rounding", "bits": 4, "group": group} for group in (32, 192, None)),
    {"method": "nf4"},
    *({"method": "gguf", "format": name} for name in ("Q8_0", "Q5_0", "Q4_1", "Q4_0")),
    *({"method": "gptq", "bits": bits, "group": 64} for bits in (4, 3)),
    {"method": "awq", "bits": 4, "group": 64},
    {"method": "awq", "bits": 3, "group": 64},
    {"method": "served", "format": "int8"},
    {"method": "served", "format": "int4"},
    *({"method": "w8a8", "per": per, "smooth": 0.5, "folded": "all"} for per in ("row", "tensor")),
    {"method": "gptq", "bits": 3, "group": 64, "calibration": "random"},
    *({**key, "rotation": seed} for seed in (1, 2) for key in (PROBE, Q4_1)),
]


class Models:
    """The rotated model, the texts, and what it computes for them without quantization."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.original, self.tokenizer = load("smollm2-135m")
        self.model = rotate_residual_stream(self.original, seed=0)
        texts = [self.ids(START + text)[0] for text in _records(CALIBRATION)]
        vocabulary = self.model.config.vocab_size
        noise = torch.randint(vocabulary, (WINDOWS * WINDOW,), generator=generator)
        self.calibration = {"instructions": windows(torch.cat(texts)), "random": windows(noise)}
        held_out = _records("instructions/test.jsonl")
        self.texts = {
            "plain": [self.ids(START + text) for text in load_texts("passages", "test")],
            "instructions": [self.ids(START + text) for text in held_out[:INSTRUCTIONS]],
        }
        self.beginnings = [(self.ids(START + a), self.ids(b)) for a, b in COMPLETIONS.items()]
        self.chosen = {}  # by kind of text, the most probable token at each position, unquantized

    def ids(self, text: str) -> Tensor:
        """The tokens of a text, (1, tokens)."""
        return self.tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids

    def quantized(self, key: dict) -> nn.Module:
        """A copy of the model, quantized as a row's key says."""
        if key["method"] == "served":
            return quantize_decoder(Decoder.from_transformers(self.original), key["format"])
        batches = self.calibration[key.get("calibration", "instructions")]
        model = copy.deepcopy(self.model)
        if "rotation" in key:
            model = rotate_residual_stream(self.original, key["rotation"])
        if "smooth" in key:
            folded = FOLDED if key.get("folded") == "all" else ("norms",)
            model = smooth(model, input_maxima(model, batches), key["smooth"], folded)
        if key["method"] == "bf16":
            return model.to(torch.bfloat16).float()  # products in bf16 are slow on most CPUs
        if key["method"] not in ("none", "kv8"):
            quantize_layers(model, _method(key), batches)
        return model

    @torch.inference_mode()
    def measured(self, model: nn.Module, eight_bit: bool) -> dict:
        """For each text [loss, predicted tokens, other choices]; for each completion [loss, found].

        Losses are sums over tokens, in nats. eight_bit: keep keys and values in int8.
        """
        decoder = model if isinstance(model, Decoder) else Decoder.from_transformers(model)

        def logits(ids: Tensor) -> Tensor:
            cache = ContiguousCache(decoder.config, eight_bit=True) if eight_bit else None
            return decoder(ids, attend=cache.attend if cache else None)[0].float()

        result = {}
        for kind, texts in self.texts.items():
            result[kind] = []
            chosen = []
            for number, ids in enumerate(texts):
                scores = logits(ids)[:-1]
                loss = F.cross_entropy(scores, ids[0, 1:], reduction="sum").item()
                chosen.append(scores.argmax(-1))
                others = 0
                if kind in self.chosen:
                    others = (chosen[-1] != self.chosen[kind][number]).sum().item()
                result[kind].append([loss, len(scores), others])
            self.chosen.setdefault(kind, chosen)  # the first that is measured is unquantized
        result["completions"] = []
        for beginning, completion in self.beginnings:
            scores = logits(torch.cat([beginning, completion], 1))[beginning.shape[1] - 1 : -1]
            loss = F.cross_entropy(scores, completion[0], reduction="sum").item()
            found = torch.equal(scores.argmax(-1), completion[0])
            result["completions"].append([loss, int(found)])
        return result


def windows(tokens: Tensor) -> list[Tensor]:
    """The first WINDOWS · WINDOW of a row of tokens, in batches, (BATCH, WINDOW)."""
    if len(tokens) < WINDOWS * WINDOW:
        raise ValueError(f"the texts have {len(tokens)} tokens, {WINDOWS * WINDOW} are needed")
    return list(tokens[: WINDOWS * WINDOW].view(-1, BATCH, WINDOW))


def _records(name: str) -> list[str]:
    """The records of a file of the course, each as its texts, one per line."""
    lines = (DATA / name).read_text("utf-8").splitlines()
    return ["\n".join(_texts(json.loads(line))) for line in lines]


def _texts(record: dict) -> list[str]:
    if "messages" in record:
        return [message["content"] for message in record["messages"]]
    return [record[name] for name in ("prompt", "input", "response") if name in record]


def _method(key: dict) -> object:
    """How the layers of a block are quantized."""
    grid = Grid(key["bits"], key["group"]) if "bits" in key else None
    match key["method"]:
        case "rounding":
            return RoundToNearest(grid)
        case "gptq":
            return GPTQ(grid, act_order=key.get("act_order", False))
        case "awq":
            return AWQ(grid)
        case "nf4":
            return EachWeight(quantize)
        case "gguf":
            return EachWeight(partial(write_gguf, name=key["format"]))
        case "w8a16":
            return EachWeight(int8_weight)
        case "w8a8":
            return EachWeight(partial(int8_weight, activations=Activations(key["per"])))
        case "llm.int8":
            return EachWeight(llm_int8_weight)


def measure(models: Models, key: dict) -> dict:
    """Quantize and measure; the bits per weight are those of the quantized layers."""
    if not models.chosen and key["method"] != "none":
        models.measured(models.model, False)
    model = models.quantized(key)
    layers = [m.quantized for m in model.modules() if isinstance(m, QuantizedLinear)]
    stored = sum(layer.nbytes for layer in layers)
    weights = sum(layer.shape.numel() for layer in layers)
    bits = 8 * stored / weights if layers else {"bf16": 16}.get(key["method"], 32)
    return {"effective_bits": bits, **models.measured(model, key["method"] == "kv8")}


if __name__ == "__main__":
    settings = {
        "model": "smollm2-135m",
        "calibration_tokens": WINDOWS * WINDOW,
        "sentences": len(load_texts("passages", "test")),
        "instructions": INSTRUCTIONS,
    }
    data = (CALIBRATION, "instructions/test.jsonl", "passages/test.jsonl")
    main(__file__, PLAN, Models, measure, probe=PROBE, settings=settings, data=data)
