"""Save and load adapters in PEFT's format, so that each library can read the other's files.

A folder holds adapter_config.json (see `peft_files`) and adapter_model.safetensors, whose keys are
base_model.model.<module>.lora_A.weight and so on.
"""

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from course_pkg.adapters.argument_checks import require_model
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.injection import (
    adapter_layers,
    adapter_names,
    layer_types,
    layers_with,
    wrap,
)
from course_pkg.adapters.layer import AdapterConfig, AdapterLayer
from course_pkg.adapters.peft_files import (
    CONFIG_FILE,
    NARROWING,
    TYING,
    base_name,
    read_config,
    read_settings,
    read_weights,
    to_peft,
    write_adapter,
)
from course_pkg.adapters.saved_module import (
    SavedModule,
    biases_of,
    saved_module_names,
    trained_biases,
)
from course_pkg.adapters.targets import (
    adaptable_modules,
    in_saved_module,
    selected_modules,
    shortest_targets,
    takes_all,
)

PREFIX = "base_model.model."
BASE_COPY = ".base_layer"  # PEFT adds an adapted embedding's own weight


def save_adapter(
    model: nn.Module, folder: str | os.PathLike, adapter_name: str = "default"
) -> None:
    """Write one adapter to a folder that PeftModel.from_pretrained can load."""
    layers = layers_with(model, adapter_name)
    if not layers:
        raise ValueError(
            f"the model has no adapter {adapter_name!r}; its adapters are {adapter_names(model)}"
        )
    config = next(iter(layers.values())).configs[adapter_name]
    described = to_peft(config)
    targets = [name for name, layer in layers.items() if not isinstance(layer, SavedModule)]
    described["target_modules"] = _targets_for_file(model, config, targets)
    described["base_model_name_or_path"] = base_name(model)
    causal = type(model).__name__.endswith("ForCausalLM")
    described |= {"inference_mode": True, "task_type": "CAUSAL_LM" if causal else None}
    tensors = {
        f"{name}.{key}": tensor
        for name, layer in layers.items()
        for key, tensor in _file_keys(layer, adapter_name).items()
    }
    tensors |= biases_of(model, adapter_layers(model), adapter_name)
    tensors = {PREFIX + key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
    write_adapter(folder, described, tensors)


def load_adapter(
    model: nn.Module, folder: str | os.PathLike, adapter_name: str = "default"
) -> AdapterConfig:
    """Add an adapter from a folder that this package or PEFT wrote; return its configuration.

    As with `inject`, a model's first adapter becomes active. `adapter_name` may differ from the
    name under which it was trained.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, needs something that is not implemented, or belongs to
            another model. The model is then unchanged.
    """
    folder = Path(folder)
    settings = read_settings(folder)
    config = read_config(folder)
    if settings.get(TYING):
        config = _with_both_saved(model, config, folder)
    saved = saved_module_names(model, config.modules_to_save)
    weights, biases, copies = _group_by_module(
        read_weights(folder), config, saved, _embeddings(model), folder
    )
    names = [name for name in weights if name not in saved]
    config.check_modules(names)
    narrowed = any(settings.get(name) not in (None, [], "") for name in NARROWING)
    _check_fit(model, config, weights, biases, saved, folder, narrowed)
    _check_copies(model, copies, folder)
    if narrowed:
        config = replace(config, target_modules=names)
    wrap(model, names, config, adapter_name, saved=saved)
    with torch.no_grad():
        for name, layer in layers_with(model, adapter_name).items():
            for key, parameter in _file_keys(layer, adapter_name).items():
                parameter.copy_(weights[name][key])
        for key, parameter in biases_of(model, adapter_layers(model), adapter_name).items():
            parameter.copy_(biases[key])
    return config


def _targets_for_file(
    model: nn.Module, config: AdapterConfig, targets: Sequence[str]
) -> str | Sequence[str]:
    """The config's targets, or a shorter list of endings that selects the same modules."""
    setting = config.target_modules
    every = takes_all(setting)
    if isinstance(config, IA3Config) or (isinstance(setting, str) and not every):
        return setting  # IA³'s feedforward_modules repeats some of the targets word for word
    others = [
        name
        for name in adaptable_modules(model)
        if name not in targets and not in_saved_module(name, config.modules_to_save)
    ]
    shortest = shortest_targets(targets, others)
    return shortest if every or len(shortest) < len(setting) else setting


def _file_keys(layer: AdapterLayer, adapter_name: str) -> dict[str, Tensor]:
    if isinstance(layer, SavedModule):
        return layer.state_of(adapter_name)
    weights = layer.weights_of(adapter_name)
    return {layer.file_keys.get(part, part): weight for part, weight in weights.items()}


def _embeddings(model: nn.Module) -> list[str]:
    """The names of the input and the output embeddings; empty for a model without these."""
    getters = (getattr(model, f"get_{side}_embeddings", None) for side in ("input", "output"))
    wanted = [get() for get in getters if get is not None]
    return [name for name, module in adaptable_modules(model).items() if module in wanted]


def _with_both_saved(model: nn.Module, config: AdapterConfig, folder: Path) -> AdapterConfig:
    """The config of an adapter whose embeddings and output stay one matrix, in full."""
    tied = _embeddings(model)
    if not getattr(getattr(model, "config", None), "tie_word_embeddings", False):
        return config
    if any(name in tied for name in selected_modules(model, config.target_modules)):
        raise ValueError(
            f"{folder} has one adapter for {' and '.join(tied)} together ({TYING}), which is not "
            "implemented here: merge it in PEFT, and give the merged model"
        )
    if not set(tied) & set(saved_module_names(model, config.modules_to_save)):
        return config
    return replace(config, modules_to_save=[*config.modules_to_save, *tied])


def _group_by_module(
    weights: Mapping[str, Tensor],
    config: AdapterConfig,
    saved: Sequence[str],
    embeddings: Sequence[str],
    folder: Path,
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor], dict[str, Tensor]]:
    """Tensors by module and end of key; trained biases by key; copies of base weights by module."""
    groups: dict[str, dict[str, Tensor]] = {}
    biases: dict[str, Tensor] = {}
    copies: dict[str, Tensor] = {}
    unexpected = [key for key in weights if not key.startswith(PREFIX)]
    for key, tensor in weights.items():
        key = key.removeprefix(PREFIX)
        whole = next((name for name in saved if key.startswith(f"{name}.")), None)
        name, _, part = key.removesuffix(".weight").rpartition(".")
        if whole is not None:
            end = key.removeprefix(f"{whole}.")
            # With bias="all", PEFT also writes the biases of the original and of its copy.
            if config.bias != "all" or not end.startswith(("original_module.", "modules_to_save.")):
                groups.setdefault(whole, {})[end] = tensor
        elif part.startswith(("lora_", "ia3_", "bottleneck_")):
            groups.setdefault(name, {})[key.removeprefix(f"{name}.")] = tensor
        elif config.bias != "none" and part == "bias":
            biases[key] = tensor
        elif f".{name}.{part}".endswith(BASE_COPY):
            copies[name] = tensor
        elif key.removesuffix(".weight") in embeddings:
            copies[key.removesuffix(".weight")] = tensor
        else:
            unexpected.append(key)
    if unexpected or not groups:
        names = _first_few(unexpected) or "no tensors"
        raise ValueError(f"{folder} must contain weights of the adapter's modules, found {names}")
    return groups, biases, copies


def _check_copies(model: nn.Module, copies: Mapping[str, Tensor], folder: Path) -> None:
    """Raise ValueError unless the file's copies of the base's weights are the model's own."""
    modules = dict(model.named_modules())
    for name, copied in copies.items():
        module = modules.get(name)
        own = getattr(module.base if isinstance(module, AdapterLayer) else module, "weight", None)
        if own is None or not own.is_floating_point() or not _same(own, copied):
            shape = "no such weight" if own is None else f"{tuple(own.shape)}"
            raise ValueError(
                f"{folder} has {name}.weight, {tuple(copied.shape)}, which is not this model's, "
                f"{shape}: it was trained on another model, or with new tokens; merge it with the "
                "library that trained it, and give the merged model"
            )


def _same(first: Tensor, second: Tensor) -> bool:
    """Whether two weights have one shape, and are equal in the coarser one of their types."""
    coarser = max(first.dtype, second.dtype, key=lambda dtype: torch.finfo(dtype).eps)
    return torch.equal(first.detach().cpu().to(coarser), second.cpu().to(coarser))


def _check_fit(
    model: nn.Module,
    config: AdapterConfig,
    weights: Mapping[str, Mapping[str, Tensor]],
    biases: Mapping[str, Tensor],
    saved: Sequence[str],
    folder: Path,
    narrowed: bool,
) -> None:
    modules = dict(require_model(model).named_modules())
    expected = {*selected_modules(model, config.target_modules, config.modules_to_save), *saved}
    problems = []
    for name, tensors in weights.items():
        if name in modules and name not in expected:
            problems.append(
                f"{name}.{next(iter(tensors))} is not of a module that {CONFIG_FILE} names"
            )
            continue
        kinds = (SavedModule,) if name in saved else layer_types(config)
        if problem := _misfit(modules.get(name), name, tensors, config, kinds):
            problems.append(problem)
    absent = set(saved if narrowed else expected) - set(weights)
    problems += [f"{name} has no weights in the file" for name in sorted(absent)]
    problems += _bias_problems(trained_biases(model, config.bias, list(weights), saved), biases)
    if problems:
        kind = type(model).__name__ if isinstance(model, PreTrainedModel) else "model"
        raise ValueError(f"{folder} does not fit this {kind}: {_first_few(problems)}")


def _misfit(
    module: nn.Module | None,
    name: str,
    weights: Mapping[str, Tensor],
    config: AdapterConfig,
    kinds: Sequence[type[AdapterLayer]],
) -> str | None:
    """Why a module can't have an adapter of one of these kinds with these weights, if it can't."""
    if isinstance(module, AdapterLayer):
        if type(module) not in kinds:
            return f"{name} has an adapter of another method ({module.method}) in this model"
        module = module.base
    kind = next((kind for kind in kinds if module is not None and kind.accepts(module)), None)
    if kind is None:
        actual = "missing" if module is None else f"of type {type(module).__name__}"
        return f"in this model, {name} is {actual}, so it can't have this adapter"
    with torch.device("meta"):
        copied = copy.deepcopy(module).to("meta")  # keeps only shapes
        needed = _file_keys(kind(copied, config, "x", module_name=name), "x")
    shapes = {end: tuple(tensor.shape) for end, tensor in weights.items()}
    wanted = {end: tuple(weight.shape) for end, weight in needed.items()}
    if wanted != shapes:
        return f"{name} has weights of shapes {shapes}, expected {wanted}"
    return None


def _bias_problems(needed: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> list[str]:
    problems = [f"the file has no trained bias {key}" for key in needed if key not in stored]
    problems += [f"{key} is a bias that this model lacks" for key in stored if key not in needed]
    for key in needed.keys() & stored.keys():
        if needed[key].shape != stored[key].shape:
            shapes = f"{tuple(stored[key].shape)}, expected {tuple(needed[key].shape)}"
            problems.append(f"{key} has shape {shapes}")
    return problems


def _first_few(items: Sequence[str]) -> str:
    more = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return "; ".join(items[:3]) + more
