"""Save and load adapters in PEFT's own format, so that both libraries read each other's.

A folder holds adapter_config.json and adapter_model.safetensors, whose keys are
base_model.model.<module>.lora_A.weight and ….lora_B.weight, without the adapter's name.
What this package does not implement (DoRA, ranks per module, trained biases, modules saved
whole, …) is refused on loading, never ignored. Chapter: adapters/lora.
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
from course_pkg.adapters.targets import linear_modules, matches
from course_pkg.files import write_atomically

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
# Keys that say nothing about what the adapter computes once its weights are given …
NEUTRAL = {
    "auto_mapping", "base_model_name_or_path", "fan_in_fan_out", "inference_mode",
    "megatron_core", "peft_version", "qalora_group_size", "revision", "task_type",
}  # fmt: skip
UNDERSTOOD = {
    "bias", "init_lora_weights", "lora_alpha", "lora_dropout", "peft_type", "r",
    "target_modules", "use_rslora",
}  # fmt: skip
# … and ways of starting an adapter that leave the base weights alone (PiSSA, OLoRA, … do not).
HARMLESS_STARTS = (True, False, "gaussian", "eva", "orthogonal")


def save_adapter(
    model: nn.Module, folder: str | os.PathLike, adapter_name: str = "default"
) -> None:
    """Write one adapter to a folder that PeftModel.from_pretrained can load.

    A reader never sees half a file: each is written aside and renamed, weights first.
    Raises ValueError if the model has no such adapter.

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
    elif targets.lower() == "all-linear":  # PEFT, too, writes out the names it stood for
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

    The name is the one it gets here; it need not be the one it was trained under. As after
    inject_lora, a model's first adapter is active at once, a later one after `set_adapter`.
    Raises FileNotFoundError, or ValueError if the files are damaged, ask for something that is not
    implemented, or belong to another model; the model is then unchanged.

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
    pairs = _pair_up(weights, folder)
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
        raise ValueError(f"no adapter {adapter_name!r} here; there are: {adapter_names(model)}")
    return layers


def _read_config(folder: Path) -> LoRAConfig:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise FileNotFoundError(f"no {CONFIG_FILE} in {folder}: it is not an adapter's folder")
    try:
        raw = json.loads(path.read_bytes())
        kind, bias = raw["peft_type"], raw.get("bias", "none")
        start = raw.get("init_lora_weights", True)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a PEFT configuration: {error!r}") from error
    asked = [key for key in raw if key not in NEUTRAL | UNDERSTOOD and raw[key]]
    problems = [f"{key}={raw[key]!r}" for key in asked]
    problems += [f"peft_type={kind!r}"] * (kind != "LORA") + [f"bias={bias!r}"] * (bias != "none")
    problems += [f"init_lora_weights={start!r}"] * (start not in HARMLESS_STARTS)
    if problems:
        raise ValueError(f"{path} asks for what is not implemented here: {', '.join(problems)}")
    try:
        return LoRAConfig(
            rank=raw["r"],
            alpha=raw["lora_alpha"],
            dropout=raw.get("lora_dropout", 0.0),
            target_modules=raw["target_modules"],
            use_rslora=raw.get("use_rslora", False),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error!r}") from error


def _read_weights(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        pickled = (folder / "adapter_model.bin").exists()
        why = "; adapter_model.bin is a pickle, which can run code: convert it" if pickled else ""
        raise FileNotFoundError(f"no {WEIGHTS_FILE} in {folder}{why}")
    try:
        return safetensors.load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); copy it again") from error


def _pair_up(weights: dict[str, Tensor], folder: Path) -> dict[str, dict[str, Tensor]]:
    """Module name → its lora_A and lora_B."""
    pairs: dict[str, dict[str, Tensor]] = {}
    strange = []
    for key, tensor in weights.items():
        name, _, part = key.removesuffix(".weight").rpartition(".")
        if (
            key == f"{name}.{part}.weight"
            and part in ("lora_A", "lora_B")
            and name.startswith(PREFIX)
        ):
            pairs.setdefault(name.removeprefix(PREFIX), {})[part] = tensor
        else:
            strange.append(key)
    strange += [f"{name} without its partner" for name, pair in pairs.items() if len(pair) < 2]
    if strange or not pairs:
        raise ValueError(f"{folder} holds {_some(strange) or 'no tensors'}, not plain LoRA weights")
    return pairs


def _check_fit(model: nn.Module, config: LoRAConfig, pairs: dict, folder: Path) -> None:
    linear = linear_modules(model)
    everything = dict(model.named_modules())
    targets = config.target_modules
    whole = isinstance(targets, str) and targets.lower() == "all-linear"
    wanted = {name for name in linear if whole or matches(name, targets)}
    problems = []
    for name, pair in pairs.items():
        module = everything.get(name)
        if not isinstance(module, nn.Linear | LoRALinear):
            kind = "missing" if module is None else f"a {type(module).__name__}, not an nn.Linear"
            problems.append(f"{name} is {kind} in this model")
            continue
        shapes = (config.rank, module.in_features), (module.out_features, config.rank)
        given = tuple(pair["lora_A"].shape), tuple(pair["lora_B"].shape)
        if given != shapes:
            problems.append(f"{name} has A, B of shapes {given}, this model needs {shapes}")
    problems += [f"{name} has no weights in the file" for name in sorted(wanted - set(pairs))]
    if problems:
        problem = _some(problems)
        raise ValueError(f"{folder} does not fit this {type(model).__name__}: {problem}")


def _some(items: Sequence[str], limit: int = 3) -> str:
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return "; ".join(items[:limit]) + more
