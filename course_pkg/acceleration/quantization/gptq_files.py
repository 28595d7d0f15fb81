"""Checkpoints in GPTQ's format, which vLLM, transformers and others load: read and written.

A linear layer has four tensors in place of the weight::

    qweight   int32, (in · bits / 32, out)       the codes, packed along the inputs
    qzeros    int32, (groups, out · bits / 32)   the zero points, packed along the outputs
    scales    fp16,  (groups, out)
    g_idx     int32, (in,)                       the group of each input

"gptq", the older and usual format, stores the zero point minus 1, modulo 2^bits; "gptq_v2" stores
it as it is. Not all programs read a zero point of 0 from the older format, so it is not written.

Sources: the layers and configurations of AutoGPTQ 0.7.1 and GPTQModel 7.7.0.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from course_pkg.acceleration.quantization.grouped import (
    SCALE_DTYPE,
    Grid,
    GroupedWeight,
    pack,
    store,
    unpack,
)
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.common.arguments import require_choice
from course_pkg.common.files import atomic_file
from course_pkg.lm.load import check_dtype, first_line
from course_pkg.lm.model_errors import CorruptModelError, ModelError
from course_pkg.lm.model_folder import read_settings
from course_pkg.lm.pretrained import read_files, refuse_adapters

FORMATS = ("gptq", "gptq_v2")
BITS = (2, 3, 4, 8)
WORD = 32  # bits; inputs and outputs must be multiples of it, so that 3 bits fill whole words
PARTS = ("qweight", "qzeros", "scales", "g_idx")


def to_gptq(weight: GroupedWeight, checkpoint_format: str = "gptq") -> dict[str, Tensor]:
    """The four tensors of a layer, by PARTS."""
    require_choice(checkpoint_format, "checkpoint_format", FORMATS)
    grid = weight.grid
    _require_fitting(grid, *weight.shape)
    zero = weight.zero.long()
    if checkpoint_format == "gptq":
        if (zero == 0).any():
            raise ValueError(
                'the format "gptq" stores zero points minus 1, and one here is 0, because a group '
                'has no negative weight: use checkpoint_format="gptq_v2"'
            )
        zero = zero - 1
    columns = weight.columns
    groups = weight.order
    if groups is None:
        groups = torch.arange(columns, device=zero.device) // grid.width(columns)
    codes = unpack(weight.codes, grid.bits, columns)
    return {
        "qweight": _words(codes, grid.bits).T.contiguous(),
        "qzeros": _words(zero.T, grid.bits),
        "scales": weight.scale.T.contiguous(),
        "g_idx": groups.to(torch.int32),
    }


def from_gptq(
    tensors: Mapping[str, Tensor],
    grid: Grid,
    checkpoint_format: str = "gptq",
    dtype: torch.dtype = torch.float32,
) -> GroupedWeight:
    """The weight, of this dtype, that a layer's four tensors stand for."""
    require_choice(checkpoint_format, "checkpoint_format", FORMATS)
    if missing := [name for name in PARTS if name not in tensors]:
        raise ValueError(f"a layer has {', '.join(PARTS)}; {', '.join(missing)} is missing")
    columns = tensors["g_idx"].numel()
    rows = tensors["scales"].shape[-1:].numel()
    _require_fitting(grid, rows, columns)
    width = grid.width(columns)
    bits = grid.bits
    expected = {
        "qweight": (columns * bits // WORD, rows),
        "qzeros": (columns // width, rows * bits // WORD),
        "scales": (columns // width, rows),
        "g_idx": (columns,),
    }
    for name, shape in expected.items():
        dtype_fits = name == "scales" or tensors[name].dtype == torch.int32
        if tensors[name].shape != shape or not dtype_fits:
            raise ValueError(
                f"{name} is {tuple(tensors[name].shape)} of {tensors[name].dtype}, but {rows} "
                f"outputs, {columns} inputs and {grid.describe()} need {shape} of int32, or of "
                "float16 for scales"
            )
    groups = tensors["g_idx"]
    if int(groups.min()) < 0 or int(groups.max()) >= columns // width:
        raise ValueError(f"g_idx must be in 0 … {columns // width - 1}, got {int(groups.max())}")
    codes = _numbers(tensors["qweight"].T, bits, columns)
    zero = _numbers(tensors["qzeros"], bits, rows).long()
    if _is_less_one(zero, grid, checkpoint_format):
        zero = (zero + 1) & grid.largest
    neighbors = torch.arange(columns, device=groups.device) // width
    order = None if torch.equal(groups.long(), neighbors) else groups
    scale = tensors["scales"].to(SCALE_DTYPE)
    return store(codes, scale.T, zero.T, grid, dtype, order)


def _is_less_one(stored: Tensor, grid: Grid, checkpoint_format: str) -> bool:
    """Whether the stored zero points are less by 1 than those meant.

    The middle of a symmetric grid is known, so the numbers tell; some programs label them wrongly.
    """
    middle = 2 ** (grid.bits - 1)
    if grid.symmetric and (stored == middle).all():
        return False
    if grid.symmetric and (stored == middle - 1).all():
        return True
    return checkpoint_format == "gptq"


def _words(numbers: Tensor, bits: int) -> Tensor:
    """Numbers packed along the last dimension into int32."""
    return pack(numbers, bits).contiguous().view(torch.int32)


def _numbers(words: Tensor, bits: int, count: int) -> Tensor:
    """The numbers in int32 words, uint8."""
    return unpack(words.contiguous().view(torch.uint8), bits, count)


def _require_fitting(grid: Grid, rows: int, columns: int) -> None:
    if grid.bits not in BITS:
        raise ValueError(f"GPTQ's format has 2, 3, 4 or 8 bits, not {grid.bits}")
    if rows % WORD or columns % WORD or not rows * columns:
        raise ValueError(
            f"GPTQ's format needs multiples of {WORD} outputs and inputs, got {rows} and {columns}"
        )


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's contents; `config` is the model's, without `quantization_config`."""

    config: dict[str, Any]
    weights: dict[str, GroupedWeight]  # the quantized ones, by the layer's name
    tensors: dict[str, Tensor]  # all others


def save_gptq(model: LlamaForCausalLM, folder: str | Path, checkpoint_format: str = "gptq") -> None:
    """Write a quantized model as config.json, generation_config.json and model.safetensors.

    The tokenizer is not written. The quantized layers, of `quantize_layers`, must have one grid.
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
    """Whether a folder has a config.json that says that its weights are in GPTQ's format."""
    try:
        config = read_settings(Path(folder).expanduser() / "config.json")
        return config["quantization_config"]["quant_method"] == "gptq"
    except (CorruptModelError, KeyError, TypeError):
        return False


def read_gptq(folder: str | Path, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """What is in a folder with config.json and .safetensors files, with the layers as weights.

    Args:
        dtype: of dequantized weights.

    Raises:
        ModelError: the folder is not a checkpoint or not one of GPTQ.
        CorruptModelError: its files do not fit together.
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

    Everything that is not quantized gets the dtype.

    Raises:
        ModelError: for another model, and as `read_gptq` does.
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
