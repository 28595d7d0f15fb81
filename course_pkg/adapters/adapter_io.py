"""Save and load adapters in PEFT's format, so that each library can read the other's files.

A folder holds adapter_config.json and adapter_model.safetensors, whose keys are
base_model.model.<module>.lora_A.weight and ….lora_B.weight, without the adapter's name.
Loading refuses settings that this package does not implement (DoRA, ranks per module, trained
biases, modules saved in full, …) instead of ignoring them. Chapter: adapters/lora-training.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn

from course_pkg.adapters.injection import adapter_names, lora_layers, wrap
from course_pkg.adapters.lora import LoRAConfig, LoRALinear
from course_pkg.adapters.targets import linear_modules, matches, require_model
from course_pkg.files import write_atomically

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
# Settings that do not change what an adapter with given weights computes.
IGNORED_KEYS = {
    "auto_mapping", "base_model_name_or_path", "fan_in_fan_out", "inference_mode",
    "megatron_core", "peft_version", "qalora_group_size", "revision", "task_type",
}  # fmt: skip
SUPPORTED_KEYS = {
    "bias", "init_lora_weights", "lora_alpha", "lora_dropout", "peft_type", "r",
    "target_modules", "use_rslora",
}  # fmt: skip
# Initializations that do not change the base weights; PiSSA and OLoRA, for example, do.
SUPPORTED_INITIALIZATIONS = (True, False, "gaussian", "eva", "orthogonal")


def save_adapter(
    model: nn.Module, folder: str | os.PathLike, adapter_name: str = "default"
) -> None:
    """Write one adapter to a folder that PeftModel.from_pretrained can load.

    Each file is written under a temporary name and then renamed, weights first, so that a reader
    never sees half a file. Raises ValueError if the model has no such adapter.

    >>> from course_pkg.adapters.injection import inject_lora
    >>> model = nn.Sequential(nn.Linear(4, 4))
    >>> _ = inject_lora(model, LoRAConfig(rank=2))
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save_adapter(model, folder)
    ...     sorted(os.listdir(folder))
    ['adapter_config.json', 'adapter_model.safetensors']
    """
    layers = _layers_with(model, adapter_name)
    config = next(iter(layers.values())).configs[adapter_name]
    targets = config.target_modules
    if isinstance(targets, tuple):
        targets = list(targets)
    elif targets.lower() == "all-linear":  # PEFT also writes the modules' names
        targets = list(layers)
    base = getattr(model, "config", None)
    described = {
        "base_model_name_or_path": getattr(base, "name_or_path", None) or None,
        "bias": "none",
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "peft_type": "LORA",
        "r": config.rank,
        "target_modules": targets,
        "task_type": "CAUSAL_LM" if type(model).__name__.endswith("ForCausalLM") else None,
        "use_rslora": config.use_rslora,
    }
    weights = {}
    for name, layer in layers.items():
        for part in ("lora_A", "lora_B"):
            tensor = getattr(layer, part)[adapter_name].detach()
            weights[f"{PREFIX}{name}.{part}.weight"] = tensor.cpu().contiguous()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    blob = safetensors.save(weights, metadata={"format": "pt"})
    write_atomically(folder / WEIGHTS_FILE, blob)
    text = json.dumps(described, indent=2, sort_keys=True) + "\n"
    write_atomically(folder / CONFIG_FILE, text)


def load_adapter(
    model: nn.Module, folder: str | os.PathLike, adapter_name: str = "default"
) -> LoRAConfig:
    """Add an adapter from a folder that this package or PEFT wrote; return its configuration.

    adapter_name: its name in this model, which may differ from the name it was trained under. As
    with inject_lora, a model's first adapter becomes active; activate later ones with
    `set_adapter`. Raises FileNotFoundError if a file is missing; ValueError if a file is damaged,
    needs something that is not implemented, or belongs to a different model. The model is then
    unchanged.

    >>> from course_pkg.adapters.injection import inject_lora
    >>> model, other = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))
    >>> _ = inject_lora(model, LoRAConfig(rank=2))
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save_adapter(model, folder)
    ...     load_adapter(other, folder).rank
    2
    """
    folder = Path(folder)
    config = _read_config(folder)
    weights = _read_weights(folder)
    pairs = _group_by_module(weights, folder)
    _check_fit(model, config, pairs, folder)
    wrap(model, list(pairs), config, adapter_name)
    with torch.no_grad():
        for name, layer in _layers_with(model, adapter_name).items():
            layer.lora_A[adapter_name].copy_(pairs[name]["lora_A"])
            layer.lora_B[adapter_name].copy_(pairs[name]["lora_B"])
    return config


def _layers_with(model: nn.Module, adapter_name: str) -> dict[str, LoRALinear]:
    layers = {n: layer for n, layer in lora_layers(model).items() if adapter_name in layer.configs}
    if not layers:
        raise ValueError(
            f"the model has no adapter {adapter_name!r}; its adapters are {adapter_names(model)}"
        )
    return layers


def _read_config(folder: Path) -> LoRAConfig:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no {CONFIG_FILE}, so it is not an adapter folder")
    try:
        raw = json.loads(path.read_bytes())
        kind, bias = raw["peft_type"], raw.get("bias", "none")
        initialization = raw.get("init_lora_weights", True)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a PEFT configuration: {error!r}") from error
    known = IGNORED_KEYS | SUPPORTED_KEYS
    problems = [f"{key}={raw[key]!r}" for key in raw if key not in known and raw[key]]
    problems += [f"peft_type={kind!r}"] * (kind != "LORA") + [f"bias={bias!r}"] * (bias != "none")
    if initialization not in SUPPORTED_INITIALIZATIONS:
        problems.append(f"init_lora_weights={initialization!r}")
    if problems:
        raise ValueError(
            f"{path} has settings that are not implemented here: {', '.join(problems)}"
        )
    try:
        return LoRAConfig(
            rank=raw["r"],
            alpha=raw["lora_alpha"],
            dropout=raw.get("lora_dropout", 0.0),
            target_modules=raw["target_modules"],
            use_rslora=raw.get("use_rslora", False),
        )
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} has an invalid setting: {problem}") from error


def _read_weights(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        pickled = (folder / "adapter_model.bin").exists()
        note = "; adapter_model.bin is a pickle, which can run code: convert it" if pickled else ""
        raise FileNotFoundError(f"{folder} has no {WEIGHTS_FILE}{note}")
    try:
        return safetensors.load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or truncated ({error}); copy it again") from error


def _group_by_module(weights: dict[str, Tensor], folder: Path) -> dict[str, dict[str, Tensor]]:
    """The lora_A and lora_B of each module, by module name."""
    pairs: dict[str, dict[str, Tensor]] = {}
    unexpected = []
    for key, tensor in weights.items():
        name, _, part = key.removesuffix(".weight").rpartition(".")
        if (
            key == f"{name}.{part}.weight"
            and part in ("lora_A", "lora_B")
            and name.startswith(PREFIX)
        ):
            pairs.setdefault(name.removeprefix(PREFIX), {})[part] = tensor
        else:
            unexpected.append(key)
    unexpected += [f"only half of {name}" for name, pair in pairs.items() if len(pair) < 2]
    if unexpected or not pairs:
        found = _first_few(unexpected) or "no tensors"
        raise ValueError(f"{folder} must contain lora_A and lora_B of each module, found {found}")
    return pairs


def _check_fit(model: nn.Module, config: LoRAConfig, pairs: dict, folder: Path) -> None:
    modules = dict(require_model(model).named_modules())
    targets = config.target_modules
    every = isinstance(targets, str) and targets.lower() == "all-linear"
    expected = {name for name in linear_modules(model) if every or matches(name, targets)}
    problems = []
    for name, pair in pairs.items():
        module = modules.get(name)
        if not isinstance(module, nn.Linear | LoRALinear):
            kind = "missing" if module is None else f"a {type(module).__name__}, not an nn.Linear"
            problems.append(f"in this model, {name} is {kind}")
            continue
        shapes = (config.rank, module.in_features), (module.out_features, config.rank)
        given = tuple(pair["lora_A"].shape), tuple(pair["lora_B"].shape)
        if given != shapes:
            problems.append(f"{name} has A and B of shapes {given}, expected {shapes}")
    problems += [f"{name} has no weights in the file" for name in sorted(expected - set(pairs))]
    if problems:
        details = _first_few(problems)
        raise ValueError(f"{folder} does not fit this {type(model).__name__}: {details}")


def _first_few(items: Sequence[str], limit: int = 3) -> str:
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return "; ".join(items[:limit]) + more
