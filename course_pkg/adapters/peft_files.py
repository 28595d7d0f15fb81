"""PEFT's adapter folder: adapter_config.json, with settings, and adapter_model.safetensors.

Reading refuses settings that this package does not implement (such as `layer_replication`)
instead of ignoring them.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn

from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.bottleneck import BottleneckConfig
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.layer import AdapterConfig
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.common.files import write_atomically
from course_pkg.lm import smollm2

# Settings that do not change what an adapter with given weights computes.
IGNORED = {
    "auto_mapping",
    "base_model_name_or_path",
    "fan_in_fan_out",
    "inference_mode",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "task_type",
}
# Settings that leave out some of the targets: the file's own names say which.
NARROWING = ("exclude_modules", "layers_to_transform", "layers_pattern")
TYING = "ensure_weight_tying"  # embeddings and output stay one matrix, which the file has twice
SHARED = {"target_modules": "target_modules", "modules_to_save": "modules_to_save"}


@dataclass(frozen=True)
class PeftFormat:
    """How one method's config is written.

    Attributes:
        fields: our setting by PEFT's.
        fixed: settings that a file has with this value or not at all.
        harmless: other values of fixed settings that don't change a trained adapter.
        required: settings that a file must have.
        ignored: settings that don't matter to a trained adapter, or that `adapter_io` reads.
        accepts: whether a file of this peft_type is of this method.
    """

    config_type: type[AdapterConfig]
    peft_type: str
    fields: Mapping[str, str]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    harmless: Mapping[str, tuple] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    accepts: Callable[[Mapping[str, Any]], bool] = lambda raw: True


_PLAIN = {"init_lora_weights": True}
_ALPHA = {"lora_alpha": "alpha", "lora_dropout": "dropout", "bias": "bias"}
_PATTERNS = {"rank_pattern": "rank_pattern", "alpha_pattern": "alpha_pattern"}
_SAME = ("total_step", "tinit", "tfinal", "beta1", "beta2", "orth_reg_weight", "rank_pattern")
_ADALORA = {"init_r": "initial_rank", "target_r": "target_rank", "deltaT": "delta_t"}
_LORA_FORMAT = PeftFormat(
    LoRAConfig,
    "LORA",
    {"r": "rank", "use_rslora": "use_rslora"} | _ALPHA | _PATTERNS | SHARED,
    fixed=_PLAIN,
    # Initializations that do not change the base weights; PiSSA and OLoRA, for example, do.
    harmless={"init_lora_weights": (True, False, "gaussian", "eva", "orthogonal")},
    required=("r", "lora_alpha", "target_modules"),
    ignored=(*NARROWING, TYING, "eva_config"),
    accepts=lambda raw: not raw.get("use_dora"),
)
FORMATS = (
    _LORA_FORMAT,
    replace(
        _LORA_FORMAT,
        config_type=DoRAConfig,
        fixed=_PLAIN | {"use_dora": True},
        accepts=lambda raw: bool(raw.get("use_dora")),
    ),
    PeftFormat(
        AdaLoRAConfig,
        "ADALORA",
        _ADALORA | {name: name for name in _SAME} | _ALPHA | SHARED,
        fixed=_PLAIN,
        harmless={"init_lora_weights": (True, False)},
        required=("total_step", "init_r", "lora_alpha", "target_modules"),
        ignored=("r", "use_rslora", "alpha_pattern"),
    ),
    PeftFormat(
        IA3Config,
        "IA3",
        {"feedforward_modules": "feedforward_modules"} | SHARED,
        fixed={"init_ia3_weights": True},
        harmless={"init_ia3_weights": (True, False)},
        required=("target_modules", "feedforward_modules"),
    ),
    PeftFormat(
        BottleneckConfig,
        "BOTTLENECK",
        {"size": "size"} | SHARED,
        required=("size", "target_modules"),
    ),
)
# Initializations that change the base but that PEFT can convert, and how.
_CONVERTIBLE = ("pissa", "olora", "corda", "lora_ga")
_CONVERT = (
    "; this start changes the base's weights, so the file does not fit the base itself: convert it "
    "to plain LoRA in PEFT, with save_pretrained(folder, path_initial_model_for_weight_conversion="
    "start), where `start` is a folder with the adapter as it was before training"
)


def to_peft(config: AdapterConfig, forms: Sequence[PeftFormat] = FORMATS) -> dict[str, Any]:
    """The method's settings by PEFT's names."""
    form = next(form for form in forms if form.config_type is type(config))
    settings = {theirs: getattr(config, ours) for theirs, ours in form.fields.items()}
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
    settings["modules_to_save"] = settings.get("modules_to_save") or None
    return {"peft_type": form.peft_type, **form.fixed, **settings}


def from_peft(raw: Mapping[str, Any], forms: Sequence[PeftFormat] = FORMATS) -> AdapterConfig:
    """The config that PEFT's settings describe."""
    kind = raw["peft_type"]
    fits = [form for form in forms if form.peft_type == kind and form.accepts(raw)]
    if not fits:
        types = ", ".join(dict.fromkeys(form.peft_type for form in forms))
        raise ValueError(f"is not implemented here: peft_type={kind!r}, expected one of {types}")
    known = fits[0]
    allowed = IGNORED | {"peft_type", *known.fields, *known.fixed, *known.ignored}
    problems = [f"{key}={raw[key]!r}" for key in raw if key not in allowed and raw[key]]
    for key, value in known.fixed.items():
        if raw.get(key, value) not in (value, *known.harmless.get(key, ())):
            problems.append(f"{key}={raw[key]!r}")
    if problems:
        start = str(raw.get("init_lora_weights", "")).lower().startswith(_CONVERTIBLE)
        advice = _CONVERT if start else ""
        listed = ", ".join(problems)
        raise ValueError(f"has settings that are not implemented here: {listed}{advice}")
    settings = {ours: raw[theirs] for theirs, ours in known.fields.items() if theirs in raw}
    for key in known.required:
        if key not in raw:
            raise ValueError(f"has an invalid setting: {key!r} is missing")
    try:
        return known.config_type(**settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"has an invalid setting: {error}") from error


CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"


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
    """PEFT's settings, which include peft_type."""
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
    """The config that the file describes, without the settings that the caller reads by itself."""
    raw = {key: value for key, value in read_settings(folder).items() if key not in ignored}
    try:
        return from_peft(raw, forms)
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG_FILE} {error}") from error.__cause__


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The file's tensors by name."""
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        pickled = (folder / "adapter_model.bin").exists()
        note = "; adapter_model.bin is a pickle, which can run code: convert it" if pickled else ""
        raise FileNotFoundError(f"{folder} has no {WEIGHTS_FILE}{note}")
    if whole := list(folder.glob("model*.safetensors*")):
        raise ValueError(
            f"{folder} has a whole model ({min(whole).name}) beside the adapter: keep them in two "
            "folders, because only one of them would be used"
        )
    try:
        weights = safetensors.load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or truncated ({error}); copy it again") from error
    for name, tensor in weights.items():
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            kind = "NaN or infinite numbers" if tensor.is_floating_point() else tensor.dtype
            raise ValueError(f"{path} has {kind} in {name}; expected finite floating-point numbers")
    return weights


# The hub's cache: a folder for each model, and in it one for each of its versions.
HUB_FOLDER = re.compile(r".*[/\\]models--([^/\\]+?)--([^/\\]+)[/\\]snapshots[/\\][^/\\]+[/\\]?")


def base_name(model: nn.Module) -> str | None:
    """The course's or the hub's name of the base, or its folder; None for a model not loaded."""
    name = getattr(getattr(model, "config", None), "name_or_path", None)
    if not name:
        return None
    if Path(name) == smollm2.cached_folder():
        return smollm2.NAME
    if hub := HUB_FOLDER.fullmatch(name):
        return "/".join(hub.groups())
    return name
