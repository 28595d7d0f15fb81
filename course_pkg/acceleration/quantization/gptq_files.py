"""Checkpoints in GPTQ's format, which vLLM, transformers and others load: read and written.

`gptq_tensors` has the layout of one layer. config.json says under `quantization_config` how many
bits and which groups there are, and which of the two conventions for zero points the layers follow.
Any method that makes a `GroupedWeight` can be stored so, since nothing in the files is specific to
GPTQ.

Sources: the configurations of AutoGPTQ 0.7.1 and GPTQModel 7.7.0.
Chapter: acceleration/quantized-weights.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from course_pkg.acceleration.quantization.gptq_tensors import PARTS, from_gptq, to_gptq
from course_pkg.acceleration.quantization.grouped import Grid, GroupedWeight
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.common.files import atomic_file
from course_pkg.lm.load import check_dtype, first_line
from course_pkg.lm.model_errors import CorruptModelError, ModelError
from course_pkg.lm.model_folder import read_settings
from course_pkg.lm.pretrained import read_files, refuse_adapters


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's contents. config: that of the model, without `quantization_config`.

    weights: the quantized ones, by the layer's name. tensors: all others, by their names.
    """

    config: dict[str, Any]
    weights: dict[str, GroupedWeight]
    tensors: dict[str, Tensor]


def save_gptq(model: LlamaForCausalLM, folder: str | Path, checkpoint_format: str = "gptq") -> None:
    """Write a quantized model as config.json, generation_config.json and model.safetensors.

    The tokenizer is not written. model: its quantized layers, of `quantize_layers`, must have one
    grid. Raises TypeError for another model, ModelError for one with an adapter, ValueError if no
    layer is quantized, their grids differ, or a weight does not fit the format.
    """
    if not isinstance(model, LlamaForCausalLM):
        raise TypeError(f"expected a LlamaForCausalLM, got {type(model).__name__}")
    refuse_adapters(model.state_dict(), tied=model.config.tie_word_embeddings)
    layers = {n: m.quantized for n, m in model.named_modules() if isinstance(m, QuantizedLinear)}
    grids = {getattr(weight, "grid", weight.describe()) for weight in layers.values()}
    if len(grids) != 1 or not isinstance(grid := grids.pop(), Grid):
        raise ValueError(
            "GPTQ's format needs layers that are quantized to one grid; quantize the model with "
            f"quantize_layers, to one Grid; its {len(layers)} quantized layers have other formats"
        )
    config = json.loads(model.config.to_json_string(use_diff=False))
    config["quantization_config"] = {
        "quant_method": "gptq",
        "bits": grid.bits,
        "group_size": grid.group_size or -1,
        "desc_act": any(weight.order is not None for weight in layers.values()),
        "sym": grid.symmetric,
        "checkpoint_format": checkpoint_format,
        "pack_dtype": "int32",
        "lm_head": False,
    }
    quantized = {f"{name}.": to_gptq(weight, checkpoint_format) for name, weight in layers.items()}
    tensors = {
        name: tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if not name.startswith(tuple(quantized)) or name.endswith(".bias")
    }
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    for prefix, parts in quantized.items():
        tensors |= {f"{prefix}{name}": tensor for name, tensor in parts.items()}
    path = Path(folder).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    with atomic_file(path / "model.safetensors") as file:
        file.write(save(tensors, metadata={"format": "pt"}))
    with atomic_file(path / "config.json") as file:
        file.write(json.dumps(config, indent=2).encode())
    with atomic_file(path / "generation_config.json") as file:  # it has the end tokens
        file.write(model.generation_config.to_json_string().encode())


def is_gptq(folder: str | Path) -> bool:
    """Whether a folder has a config.json that says that its weights are in GPTQ's format.

    >>> is_gptq("/nowhere")
    False
    """
    try:
        config = read_settings(Path(folder).expanduser() / "config.json")
        return config["quantization_config"]["quant_method"] == "gptq"
    except (CorruptModelError, KeyError, TypeError):
        return False


def read_gptq(folder: str | Path, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """What is in a folder with config.json and .safetensors files, with the layers as weights.

    dtype: of dequantized weights. Raises ModelError if the folder is not a checkpoint or not one of
    GPTQ, CorruptModelError if its files do not fit together.
    """
    config, tensors = read_files(folder)
    settings = config.pop("quantization_config", None)
    if not isinstance(settings, dict) or settings.get("quant_method") != "gptq":
        raise ModelError(
            f"{folder} is not a GPTQ checkpoint: its config.json has no quantization_config with "
            'quant_method "gptq"'
        )
    weights: dict[str, GroupedWeight] = {}
    where = "quantization_config"
    try:
        size = settings["group_size"]
        grid = Grid(settings["bits"], None if size == -1 else size, bool(settings.get("sym", True)))
        checkpoint_format = settings.get("checkpoint_format", "gptq")
        for where in [key.removesuffix(".qweight") for key in tensors if key.endswith(".qweight")]:
            keys = {part: f"{where}.{part}" for part in PARTS}
            parts = {part: tensors.pop(key) for part, key in keys.items() if key in tensors}
            weights[where] = from_gptq(parts, grid, checkpoint_format, dtype)
    except KeyError as error:
        raise CorruptModelError(f"{folder}: {where} lacks {error}") from error
    except ValueError as error:
        raise CorruptModelError(f"{folder}, {where}: {error}") from error
    return Checkpoint(config, weights, tensors)


def load_gptq(folder: str | Path, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """The Llama in a GPTQ checkpoint, with QuantizedLinear layers, in evaluation mode.

    dtype: of everything that is not quantized. Raises ModelError for another model, and as
    `read_gptq` does.
    """
    check_dtype(dtype)
    checkpoint = read_gptq(folder, dtype)
    if checkpoint.config.get("model_type") != "llama":
        raise ModelError(
            f'{folder} has a model of type "{checkpoint.config.get("model_type")}"; this loads '
            "llama"
        )
    try:
        settings = LlamaConfig.from_dict(checkpoint.config)
        with torch.device("meta"):  # parameters without memory, replaced below
            model = LlamaForCausalLM(settings).eval()
        model.model.rotary_emb = LlamaRotaryEmbedding(settings)  # in fp32, whatever the dtype
    except Exception as error:  # transformers raises any
        raise CorruptModelError(
            f"{folder}/config.json does not describe a Llama ({first_line(error)}): copy it again"
        ) from error
    expected = {name for name, _ in model.named_parameters()}  # a tied head counts once
    tensors = {
        name: tensor.to(dtype)
        for name, tensor in checkpoint.tensors.items()
        if name in expected or not _superfluous(name, tensor, model)
    }
    expected -= {f"{name}.weight" for name in checkpoint.weights}
    if differing := sorted(expected ^ tensors.keys()):
        raise CorruptModelError(
            f"{folder} and its config.json do not fit together: {differing[0]} is only in one of "
            "them; copy both again"
        )
    try:
        for name, weight in checkpoint.weights.items():
            layer = model.get_submodule(name)
            if layer.weight.shape != weight.shape:
                raise ValueError(
                    f"{name} is {tuple(weight.shape)}, not {tuple(layer.weight.shape)}"
                )
            model.set_submodule(name, QuantizedLinear(weight, layer.bias))
        model.load_state_dict(tensors, strict=False, assign=True)
        model.tie_weights()
    except (AttributeError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise CorruptModelError(
            f"{folder} has other layers than its config.json: {reason}"
        ) from None
    path = Path(folder).expanduser()
    if (path / "generation_config.json").is_file():
        try:
            model.generation_config = GenerationConfig.from_pretrained(path)
        except (OSError, ValueError) as error:
            raise CorruptModelError(f"{path}/generation_config.json cannot be read") from error
    return model


def _superfluous(name: str, tensor: Tensor, model: LlamaForCausalLM) -> bool:
    """Whether a tensor that the model lacks says nothing: older programs wrote some of them."""
    if name == "lm_head.weight":
        return model.config.tie_word_embeddings
    return name.endswith("rotary_emb.inv_freq") or (name.endswith(".bias") and not tensor.any())
