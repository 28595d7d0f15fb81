"""The two files of an adapter folder: adapter_config.json and adapter_model.safetensors.

Chapter: adapters/lora-training.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from course_pkg.adapters.layer import AdapterConfig
from course_pkg.adapters.peft_format import FORMATS, PeftFormat, from_peft
from course_pkg.files import write_atomically

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"


def write_adapter(
    folder: str | os.PathLike, settings: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> None:
    """Write both files, the weights first, each under a temporary name that is then changed."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    blob = safetensors.save(dict(weights), metadata={"format": "pt"})
    write_atomically(folder / WEIGHTS_FILE, blob)
    # A pattern's keys stay in their order, because the first that fits a module counts.
    text = json.dumps(dict(sorted(settings.items())), indent=2) + "\n"
    write_atomically(folder / CONFIG_FILE, text)


def read_settings(folder: Path) -> dict[str, Any]:
    """PEFT's settings, which include peft_type.

    Raises FileNotFoundError if there is no file, ValueError if it has something else.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no {CONFIG_FILE}, so it is not an adapter folder")
    try:
        raw = json.loads(path.read_bytes())
        if not isinstance(raw, dict):
            raise TypeError(f"expected an object, got a {type(raw).__name__}")
        raw["peft_type"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a PEFT configuration: {error!r}") from error
    return raw


def read_config(
    folder: Path, ignored: Sequence[str] = (), forms: Sequence[PeftFormat] = FORMATS
) -> AdapterConfig:
    """The config that the file describes. Raises what `read_settings` and `from_peft` raise.

    ignored: settings that the caller reads by itself. forms: the methods that the caller can load.
    """
    raw = {key: value for key, value in read_settings(folder).items() if key not in ignored}
    try:
        return from_peft(raw, forms)
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG_FILE} {error}") from error.__cause__


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The file's tensors by name.

    Raises FileNotFoundError; ValueError for a damaged file or numbers that no adapter can have.
    """
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        pickled = (folder / "adapter_model.bin").exists()
        note = "; adapter_model.bin is a pickle, which can run code: convert it" if pickled else ""
        raise FileNotFoundError(f"{folder} has no {WEIGHTS_FILE}{note}")
    try:
        weights = safetensors.load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or truncated ({error}); copy it again") from error
    for name, tensor in weights.items():
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            kind = "NaN or infinite numbers" if tensor.is_floating_point() else tensor.dtype
            raise ValueError(f"{path} has {kind} in {name}; expected finite floating-point numbers")
    return weights
