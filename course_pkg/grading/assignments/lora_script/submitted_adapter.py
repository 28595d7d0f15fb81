"""`lora-script`: reads a submitted adapter, whose bytes may be hostile, in the confined checker.

Names and sizes come first; then settings and tensors must be exactly those that were asked for.
Nothing is unpickled; code and paths that a configuration names are never used.
"""

import json
import math
import struct
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from course_pkg.adapters.injection import layer_types
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.peft_files import CONFIG_FILE, WEIGHTS_FILE, from_peft
from course_pkg.common.files import readable_size
from course_pkg.lm import smollm2

REPORT_FILE = "report.json"
REPORTED = ("held_out_loss", "exact_match")
CARD_FILE = "README.md"  # PEFT writes one; nobody reads it
LIMITS = {CONFIG_FILE: 20_000, WEIGHTS_FILE: 2_000_000, REPORT_FILE: 20_000, CARD_FILE: 100_000}
HEADER_LIMIT = 64_000  # bytes of the header; that of PEFT's file has 13,000
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
ASKED = LoRAConfig(rank=8, alpha=16, target_modules=["q_proj", "v_proj"])
SHAPES = {"q_proj": (576, 576), "v_proj": (192, 576)}  # (out, in) of SmolLM2-135M
LAYERS = 30
# What PEFT writes if the model's kind of task was not named. Anything else names other code.
LLAMA = {
    "base_model_class": "LlamaForCausalLM",
    "parent_library": "transformers.models.llama.modeling_llama",
}


class Rejected(ValueError):
    """The adapter is not what was asked for; the message tells the student why."""


def read_adapter(files: Any) -> dict[str, Tensor]:
    """The tensors of an adapter by their names in the file. Raises Rejected."""
    check_names(files)
    _check_config(_json(files, CONFIG_FILE))
    return _tensors(_read(files, WEIGHTS_FILE))


def read_report(files: dict[str, bytes]) -> dict[str, float]:
    """The numbers that the script reported. Raises Rejected."""
    report = _json(files, REPORT_FILE)
    for name in REPORTED:
        value = report.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Rejected(f"{REPORT_FILE} has no number {name!r}")
        if not abs(value) < 1e9:  # also NaN
            raise Rejected(f"{REPORT_FILE}: {name} is {str(value)[:20]}; expected a finite number")
    return {name: float(report[name]) for name in REPORTED}


def check_names(files: Any) -> None:
    """Raise Rejected unless the files are those of an adapter, with or without a report."""
    if not isinstance(files, dict) or not all(
        isinstance(name, str) and isinstance(data, bytes) for name, data in files.items()
    ):
        raise Rejected("the answer is not a folder of files")
    for name in files:
        if name.endswith(PICKLES):
            raise Rejected(f"{name[:80]} is a pickle, which can run code: leave it out")
        if name not in LIMITS:
            raise Rejected(f"{name[:80]!r} does not belong there; expected {', '.join(LIMITS)}")


def expected_shapes() -> dict[str, tuple[int, int]]:
    """The shapes of the tensors that were asked for, by their names in PEFT's format."""
    shapes = {}
    for layer in range(LAYERS):
        for target, (out, in_) in SHAPES.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            shapes[f"{name}.lora_A.weight"] = (ASKED.rank, in_)
            shapes[f"{name}.lora_B.weight"] = (out, ASKED.rank)
    return shapes


def _read(files: dict[str, bytes], name: str) -> bytes:
    if name not in files:
        raise Rejected(f"there is no {name} in the folder")
    if len(files[name]) > LIMITS[name]:
        size = readable_size(len(files[name]))
        raise Rejected(f"{name} has {size}; expected at most {readable_size(LIMITS[name])}")
    return files[name]


def _json(files: dict[str, bytes], name: str) -> dict[str, Any]:
    data = _read(files, name)
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        raise Rejected(f"{name} is not JSON") from None
    if not isinstance(tree, dict):
        raise Rejected(f"{name} is not a JSON object")
    return tree


def _check_config(raw: dict[str, Any]) -> None:
    base = raw.get("base_model_name_or_path")
    if base is not None and str(base).rstrip("/").rpartition("/")[2] != smollm2.NAME:
        raise Rejected(f"the adapter's base is {str(base)[:80]!r}; expected {smollm2.NAME}")
    if raw.get("auto_mapping") not in (None, LLAMA):
        raise Rejected(f"{CONFIG_FILE} names code in auto_mapping; expected null")
    try:
        config = from_peft({"peft_type": None} | raw)
    except (ValueError, TypeError) as error:
        raise Rejected(f"{CONFIG_FILE} {str(error)[:300]}") from None
    if type(config) is not LoRAConfig:
        raise Rejected(f"{CONFIG_FILE} is for {layer_types(config)[0].method}; expected LoRA")
    settings = ("rank", "alpha", "use_rslora", "target_modules", "modules_to_save")
    for name in (*settings, "rank_pattern", "alpha_pattern", "bias"):
        wanted = getattr(ASKED, name)
        given = getattr(config, name)
        if given != wanted:
            raise Rejected(f"{CONFIG_FILE}: {name} is {str(given)[:80]}; expected {wanted}")


def _tensors(data: bytes) -> dict[str, Tensor]:
    if len(data) < 8:
        raise Rejected(f"{WEIGHTS_FILE} has {len(data)} bytes: it is not a safetensors file")
    header = struct.unpack("<Q", data[:8])[0]
    if not 0 < header <= min(HEADER_LIMIT, len(data) - 8):
        claimed = f"{WEIGHTS_FILE} begins with a header of {header:,} bytes"
        raise Rejected(f"{claimed}: it is damaged, or not a safetensors file")
    try:
        tensors = safetensors.load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise Rejected(f"{WEIGHTS_FILE} is damaged: {str(error)[:200]}") from None
    wanted = expected_shapes()
    if unexpected := sorted(set(tensors) - set(wanted)):
        raise Rejected(f"{WEIGHTS_FILE} holds {unexpected[0][:100]!r}, which is not of the adapter")
    if missing := sorted(set(wanted) - set(tensors)):
        raise Rejected(f"{WEIGHTS_FILE} has no {missing[0]!r}")
    for name in wanted:
        tensor = tensors[name]
        if tuple(tensor.shape) != wanted[name]:
            raise Rejected(f"{name} has the shape {tuple(tensor.shape)}; expected {wanted[name]}")
        if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise Rejected(f"{name} has the dtype {tensor.dtype}; expected float32 or 16 bits")
        if not math.isfinite(tensor.float().abs().max().item()):
            raise Rejected(f"{name} has numbers that are NaN or infinite")
    if not any(tensors[name].any() for name in tensors if ".lora_B." in name):
        raise Rejected("every lora_B is zero: this is the base, without training")
    return tensors
