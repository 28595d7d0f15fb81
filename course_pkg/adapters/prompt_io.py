"""Save and load prompts and prefixes in PEFT's format.

adapter_model.safetensors has one tensor, prompt_embeddings: P, (num_virtual_tokens, hidden_size),
or the prefix of all layers, (num_virtual_tokens, layers · 2 · heads · head_dim). The file has what
a prefix's MLP computes, not the MLP, so a loaded prefix never has one.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.adapters.peft_files import (
    CONFIG_FILE,
    PeftFormat,
    base_name,
    read_config,
    read_settings,
    read_weights,
    to_peft,
    write_adapter,
)
from course_pkg.adapters.prefixes import PrefixTunedModel, PrefixTuningConfig
from course_pkg.adapters.prompts import PromptTunedModel, PromptTuningConfig
from course_pkg.adapters.virtual_tokens import VirtualTokenConfig, VirtualTokenModel

# The wrapper of each method, by the type of its config.
WRAPPERS: dict[type[VirtualTokenConfig], type[VirtualTokenModel]] = {
    PromptTuningConfig: PromptTunedModel,
    PrefixTuningConfig: PrefixTunedModel,
}
TENSOR = "prompt_embeddings"

_PROMPT = {"num_virtual_tokens": "num_virtual_tokens"}
_PREFIX = _PROMPT | {"prefix_projection": "reparametrize", "encoder_hidden_size": "hidden_size"}
_SHARED = {"fixed": {"num_transformer_submodules": 1}, "required": ("num_virtual_tokens",)}
_FORMS = (
    PeftFormat(PromptTuningConfig, "PROMPT_TUNING", _PROMPT, **_SHARED),
    PeftFormat(PrefixTuningConfig, "PREFIX_TUNING", _PREFIX, **_SHARED),
)
_MODEL_SETTINGS = ("token_dim", "num_attention_heads", "num_layers")
_TEXT_INIT = ("prompt_tuning_init_text", "tokenizer_name_or_path", "tokenizer_kwargs")
_INITIAL = ("prompt_tuning_init", "init_weights", *_TEXT_INIT)  # how training started
_OTHERS = {
    "P_TUNING": "P-tuning v1, in which an LSTM or an MLP computes the prompt",
    "MULTITASK_PROMPT_TUNING": "a prompt for each of several tasks",
    "CPT": "prompt tuning with the examples' own tokens",
}
PROMPT_TYPES = (*(form.peft_type for form in _FORMS), *_OTHERS)


def save_prompt(
    model: VirtualTokenModel, folder: str | os.PathLike, adapter_name: str = "default"
) -> None:
    """Write one prompt or prefix to a folder that PeftModel.from_pretrained can load."""
    if not isinstance(model, VirtualTokenModel):
        name = type(model).__name__
        raise TypeError(f"expected a PromptTunedModel or a PrefixTunedModel, got {name}")
    if adapter_name not in model.configs:
        known = list(model.configs)
        raise ValueError(f"the model has no adapter {adapter_name!r}; its adapters are {known}")
    config = model.configs[adapter_name]
    sizes = model.file_settings(model.base)
    described = to_peft(config, _FORMS) | sizes
    if described.get("encoder_hidden_size", 0) is None:
        described["encoder_hidden_size"] = sizes["token_dim"]
    described |= {"inference_mode": True, "task_type": "CAUSAL_LM"}
    described["base_model_name_or_path"] = base_name(model)
    with torch.no_grad():
        tensor = model.encoders[adapter_name]().detach().cpu().contiguous()
    write_adapter(folder, described, {TENSOR: tensor})


def load_prompt(
    model: nn.Module, folder: str | os.PathLike, adapter_name: str = "default"
) -> VirtualTokenModel:
    """Add a prompt or prefix that this package or PEFT wrote; return the model to use.

    A language model is wrapped; a wrapper gets one adapter more.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: one is damaged, is of another method, or doesn't fit the model; and what the
            wrapper raises. The model is then unchanged.
    """
    folder = Path(folder)
    raw = read_settings(folder)
    if what := _OTHERS.get(raw["peft_type"]):
        raise ValueError(
            f"{folder / CONFIG_FILE} is of peft_type {raw['peft_type']!r}, {what}; this package "
            "implements PROMPT_TUNING and PREFIX_TUNING"
        )
    if raw.get("task_type") not in (None, "CAUSAL_LM"):
        raise ValueError(f"{folder} is for the task {raw['task_type']}, expected CAUSAL_LM")
    config = read_config(folder, (*_MODEL_SETTINGS, *_INITIAL), _FORMS)
    weights = read_weights(folder)
    if set(weights) != {TENSOR}:
        names = ", ".join(sorted(weights)[:3]) or "no tensors"
        raise ValueError(f"{folder} must contain {TENSOR} and nothing else, found {names}")
    tensor = weights[TENSOR]
    wrapper = WRAPPERS[type(config)]
    wrapped = isinstance(model, VirtualTokenModel)
    if wrapped and type(model) is not wrapper:
        raise ValueError(f"{folder} is for {wrapper.method}; this model has {model.method}")
    base = model.base if wrapped else model
    if wrapper.accepts(base):  # otherwise the wrapper says what is wrong
        _check_fit(wrapper, base, config, raw, tensor, folder)
    if wrapped:
        model.add_adapter(adapter_name, config)
    else:
        model = wrapper(model, config, adapter_name)
    model.set_embeddings(adapter_name, tensor)
    return model


def _check_fit(
    wrapper: type[VirtualTokenModel],
    base: nn.Module,
    config: VirtualTokenConfig,
    raw: Mapping[str, Any],
    tensor: Tensor,
    folder: Path,
) -> None:
    """Raise ValueError unless the file's sizes are the model's."""
    misfit = f"{folder} does not fit this {type(base).__name__}"
    sizes = wrapper.file_settings(base)
    wrong = {k: raw[k] for k in sizes if raw.get(k) not in (None, sizes[k])}
    if wrong:
        note = ""
        if wrapper is PrefixTunedModel and "num_attention_heads" in wrong:
            note = "; a prefix counts key-value heads, not query heads"
        needed = {key: sizes[key] for key in wrong}
        raise ValueError(f"{misfit}: the file has {wrong}, the model {needed}{note}")
    shape = (config.num_virtual_tokens, wrapper.width(base))
    if (stored := tuple(tensor.shape)) != shape:
        raise ValueError(f"{misfit}: {TENSOR} is {stored}, expected {shape}")
