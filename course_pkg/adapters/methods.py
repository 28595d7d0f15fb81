"""One interface for every method: adapt a model, save what was trained, load it.

LoRA and other layer methods change layers inside the model; prompt and prefix tuning wrap the
model. So use the model that `adapt` or `load` returns. All else is the same for both kinds, but
`merge_adapters` raises NotImplementedError for bottleneck adapters, prompts and prefixes.

Chapter: adapters/peft.
"""

import os
from pathlib import Path

import torch
from torch import nn

from course_pkg.adapters.adapter_io import load_adapter, save_adapter
from course_pkg.adapters.argument_checks import require_model
from course_pkg.adapters.injection import LAYERS, inject
from course_pkg.adapters.layer import AdapterConfig
from course_pkg.adapters.peft_files import read_settings
from course_pkg.adapters.prompt_io import PROMPT_TYPES, WRAPPERS, load_prompt, save_prompt
from course_pkg.adapters.virtual_tokens import VirtualTokenConfig, VirtualTokenModel


def adapt(
    model: nn.Module,
    config: AdapterConfig | VirtualTokenConfig,
    adapter_name: str = "default",
    *,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Add an adapter of the config's method; return the model to use, with all else frozen.

    For a layer method that is the model itself.

    Raises:
        TypeError: an unknown config; otherwise as `inject` or the method's wrapper. The model is
            then unchanged.

    Example:

        >>> from course_pkg.adapters.injection import trainable_parameters
        >>> from course_pkg.adapters.lora import LoRAConfig
        >>> from course_pkg.adapters.prompts import PromptTuningConfig
        >>> from course_pkg.lm.load import load
        >>> for config in (LoRAConfig(2, target_modules=["q_proj"]), PromptTuningConfig(4)):
        ...     model = adapt(load("tiny").model, config)
        ...     count = sum(p.numel() for p in trainable_parameters(model).values())
        ...     print(type(model).__name__, count)
        LlamaForCausalLM 512
        PromptTunedModel 256
    """
    require_model(model)
    wrapper = WRAPPERS.get(type(config))
    if wrapper is None and type(config) not in LAYERS:
        known = ", ".join(kind.__name__ for kind in (*LAYERS, *WRAPPERS))
        raise TypeError(f"config must be one of {known}; got {config!r:.80}")
    if isinstance(model, VirtualTokenModel):
        model.add_adapter(adapter_name, config, generator=generator)
    elif wrapper is None:
        inject(model, config, adapter_name, generator=generator)
    else:
        return wrapper(model, config, adapter_name, generator=generator)
    return model


def save(model: nn.Module, folder: str | os.PathLike, adapter_name: str = "default") -> None:
    """Write one adapter in PEFT's format. Raises what `save_adapter` or `save_prompt` raises."""
    write = save_prompt if isinstance(model, VirtualTokenModel) else save_adapter
    write(model, folder, adapter_name)


def load(model: nn.Module, folder: str | os.PathLike, adapter_name: str = "default") -> nn.Module:
    """Add an adapter of any method from a folder; return the model to use.

    Raises:
        TypeError: a layer's adapter in a model with virtual tokens; otherwise as `load_adapter` or
            `load_prompt`. The model is then unchanged.
    """
    if read_settings(Path(folder))["peft_type"] in PROMPT_TYPES:
        return load_prompt(model, folder, adapter_name)
    if isinstance(model, VirtualTokenModel):
        raise TypeError(
            f"{folder} has an adapter for layers; load it into a model without a prompt"
        )
    load_adapter(model, folder, adapter_name)
    return model
