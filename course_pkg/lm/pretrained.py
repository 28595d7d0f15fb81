"""Checkpoints of the Llama, Mistral and Qwen2 families: config.json and .safetensors files.

Quantized weights are refused, and so are adapters that are not merged. Their tensors have names
that depend on the library: `q_proj.base.weight` and `q_proj.lora_A.default` in course_pkg.adapters,
`q_proj.base_layer.weight` in PEFT, and `base_model.` before all names of a PeftModel.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from course_pkg.lm.decoder_config import DecoderConfig
from course_pkg.lm.model_errors import CorruptModelError, ModelError
from course_pkg.lm.model_folder import check_folder, read_settings

PEFT_MODEL = "base_model.model."  # before all names of a PeftModel
# What stands in a tensor's name between a module and the module's own weights.
OURS = "base"
PEFT_LAYER = "base_layer"
PEFT_SAVED = "original_module"
# What a wrapped module has if its adapter is LoRA, which the engine takes beside the model.
LORA_PARTS = {OURS, PEFT_LAYER, "lora_A", "lora_B"}
VIRTUAL_TOKENS = ("base.", "prompt_encoder.")  # how names begin: course_pkg.adapters, PEFT


def read_folder(folder: str | Path) -> tuple[DecoderConfig, dict[str, Tensor]]:
    """The settings and the tensors of a checkpoint, in one or several .safetensors files."""
    config, tensors = read_files(folder)
    return DecoderConfig.from_dict(config), tensors


def read_files(folder: str | Path) -> tuple[dict, dict[str, Tensor]]:
    """What config.json and the .safetensors files of a checkpoint contain, whatever its model."""
    path = Path(folder).expanduser()
    files = {file.name: file for file in sorted(path.glob("*.safetensors"))}
    if not (path / "config.json").is_file() or not files:
        raise ModelError(
            f"{path} is not a checkpoint: expected a folder with config.json and .safetensors "
            "files, as save_pretrained writes it"
        )
    try:
        config = check_folder(path)
        index = path / "model.safetensors.index.json"
        if index.is_file():
            named = set(read_settings(index)["weight_map"].values())
            if named - files.keys():
                raise CorruptModelError(
                    f"{path} lacks {min(named - files.keys())}, which {index.name} names: "
                    "copy the whole folder again"
                )
            files = {name: files[name] for name in sorted(named)}
        tensors = {name: t for file in files.values() for name, t in load_file(file).items()}
    except (ValueError, KeyError, AttributeError, SafetensorError) as error:
        raise CorruptModelError(f"{path} cannot be read ({error}): copy it again") from error
    return config, tensors


def fitted(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, torch.Size], tied: bool
) -> dict[str, Tensor]:
    """The tensors under the decoder's names: exactly those in `shapes`, with these shapes.

    A checkpoint's names begin with "model."; old ones also store RoPE's frequencies, and tied ones
    may store the embeddings a second time, as lm_head.
    """
    refuse_adapters(tensors, tied=tied)
    own = {
        name.removeprefix("model."): tensor
        for name, tensor in tensors.items()
        if not name.endswith("rotary_emb.inv_freq")
    }
    if tied and (head := own.pop("lm_head.weight", None)) is not None:
        embeddings = own.get("embed_tokens.weight")
        if embeddings is not None and not torch.equal(head, embeddings):
            raise CorruptModelError(
                "lm_head.weight differs from embed_tokens.weight, but the config ties them: "
                "set tie_word_embeddings to false"
            )
    if missing := sorted(shapes.keys() - own.keys()):
        raise CorruptModelError(f"the checkpoint lacks {listed(missing, 'tensor')}: copy it again")
    if surplus := sorted(own.keys() - shapes.keys()):
        unknown = listed(surplus, "tensor")
        raise CorruptModelError(
            f"the decoder has no {unknown}: give a checkpoint that is not quantized, and whose "
            "config.json belongs to it"
        )
    for name, shape in shapes.items():
        if own[name].shape != shape:
            raise CorruptModelError(
                f"{name} has shape {tuple(own[name].shape)}, expected {tuple(shape)}: "
                "config.json belongs to another checkpoint"
            )
    return own


def refuse_adapters(names: Iterable[str], *, tied: bool) -> None:
    """Raise ModelError if these tensors' names are those of a model with an unmerged adapter.

    The message says how to merge it. tied: the output matrix is the embedding matrix.
    """
    names = list(names)
    if any(name.startswith(VIRTUAL_TOKENS) for name in names):
        raise ModelError(
            "the model has a trained prompt or prefix, which can't be merged: "
            "use the model's own generate"
        )
    wrapped = _wrapped_modules(names)
    if not wrapped and not any(name.startswith(PEFT_MODEL) for name in names):
        return
    where = listed(list(wrapped), "module") if wrapped else "a PeftModel"
    problem = f"the model has an unmerged adapter in {where}: "
    shared = [name for name in wrapped if name.endswith(("lm_head", "embed_tokens"))]
    if tied and any(wrapped[name] == PEFT_LAYER for name in shared):
        raise ModelError(
            f"{problem}train it without {' and '.join(shared)} in target_modules; lm_head and "
            "embed_tokens are one weight, and PEFT's merge_and_unload would change both"
        )
    advice = "call merge_and_unload() of the PeftModel, and give the model that it returns"
    if OURS in wrapped.values():
        advice = (
            "call merge_adapters(model) and remove_adapters(model) of course_pkg.adapters.injection"
        )
        if tied and shared:
            advice += (
                "; set model.config.tie_word_embeddings to False, because lm_head and "
                "embed_tokens then differ"
            )
    if wrapped and not shared and _parts_below(names, wrapped) <= LORA_PARTS:
        advice += (
            "; or save the adapter, and give the engine the model without it and "
            'adapters={"name": folder}'
        )
    raise ModelError(problem + advice)


def _wrapped_modules(names: Iterable[str]) -> dict[str, str]:
    """The modules that an adapter has wrapped, each with the part of the name that shows it."""
    wrapped = {}
    for name in names:
        parts = name.removeprefix(PEFT_MODEL).split(".")
        for part in (OURS, PEFT_LAYER, PEFT_SAVED):
            if part in parts:
                wrapped[".".join(parts[: parts.index(part)])] = part
    return wrapped


def _parts_below(names: Iterable[str], wrapped: Iterable[str]) -> set[str]:
    """What follows a wrapped module in the tensors' names: `lora_A`, `ia3_l`, `copies`, …"""
    own = [name.removeprefix(PEFT_MODEL) for name in names]
    return {
        name.removeprefix(f"{module}.").partition(".")[0]
        for module in wrapped
        for name in own
        if name.startswith(f"{module}.")
    }


def listed(names: list[str], kind: str) -> str:
    """The first of some names, and how many more there are."""
    if len(names) <= 2:
        return names[0] if len(names) == 1 else f"{names[0]} and 1 more {kind}"
    return f"{names[0]} and {len(names) - 1} more {kind}s"
