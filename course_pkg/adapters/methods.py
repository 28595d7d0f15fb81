"""One interface for every method: adapt a model, save what was trained, load it.

LoRA and other layer methods change layers inside the model; prompt and prefix tuning wrap the
model. So use the model that `adapt` or `load` returns. `merge_adapters` raises NotImplementedError
for bottleneck adapters, prompts and prefixes.
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
    """Add an adapter of the config's method; return the model to use, with all else frozen."""
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
    """Write one adapter in PEFT's format."""
    write = save_prompt if isinstance(model, VirtualTokenModel) else save_adapter
    write(model, folder, adapter_name)


def load(model: nn.Module, folder: str | os.PathLike, adapter_name: str = "default") -> nn.Module:
    """Add an adapter of any method from a folder; return the model to use."""
    if read_settings(Path(folder))["peft_type"] in PROMPT_TYPES:
        return load_prompt(model, folder, adapter_name)
    if isinstance(model, VirtualTokenModel):
        raise TypeError(
            f"{folder} has an adapter for layers; load it into a model without a prompt"
        )
    load_adapter(model, folder, adapter_name)
    return model
