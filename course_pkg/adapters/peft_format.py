"""The settings of each method as PEFT writes them into adapter_config.json.

Reading refuses settings that this package does not implement (ranks per module, trained
biases, …) instead of ignoring them. Chapter: adapters/lora-training.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from course_pkg.adapters.bottleneck import BottleneckConfig
from course_pkg.adapters.layer import AdapterConfig
from course_pkg.adapters.lora import LoRAConfig

# Settings that do not change what an adapter with given weights computes.
IGNORED = {
    "auto_mapping", "base_model_name_or_path", "fan_in_fan_out", "inference_mode",
    "megatron_core", "peft_version", "qalora_group_size", "revision", "task_type",
}  # fmt: skip
SHARED = {"target_modules": "target_modules", "modules_to_save": "modules_to_save"}


@dataclass(frozen=True)
class PeftFormat:
    """How one method's config is written.

    peft_type: PEFT's name of the method. fields: our setting by PEFT's. fixed: settings that are
    always written with this value, and required when reading, unless absent. harmless: for a
    fixed setting, other values that change nothing in a trained adapter. required: PEFT's settings
    that must be there.
    """

    config_type: type[AdapterConfig]
    peft_type: str
    fields: Mapping[str, str]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    harmless: Mapping[str, tuple] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    accepts: Callable[[Mapping[str, Any]], bool] = lambda raw: True


# Initializations that do not change the base weights; PiSSA and OLoRA, for example, do.
_INITIALIZATIONS = (True, False, "gaussian", "eva", "orthogonal")
_LORA = {"r": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout", "use_rslora": "use_rslora"}
FORMATS = (
    PeftFormat(
        LoRAConfig, "LORA", _LORA | SHARED, {"bias": "none", "init_lora_weights": True},
        {"init_lora_weights": _INITIALIZATIONS}, ("r", "lora_alpha", "target_modules"),
    ),
    PeftFormat(BottleneckConfig, "BOTTLENECK", {"size": "size"} | SHARED,
               required=("size", "target_modules")),
)  # fmt: skip


def to_peft(config: AdapterConfig, forms: Sequence[PeftFormat] = FORMATS) -> dict[str, Any]:
    """The method's settings by PEFT's names.

    >>> to_peft(LoRAConfig(rank=2, target_modules=["q_proj"]))["target_modules"]
    ['q_proj']
    """
    form = next(form for form in forms if form.config_type is type(config))
    settings = {theirs: getattr(config, ours) for theirs, ours in form.fields.items()}
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
    settings["modules_to_save"] = settings.get("modules_to_save") or None
    return {"peft_type": form.peft_type, **form.fixed, **settings}


def from_peft(raw: Mapping[str, Any], forms: Sequence[PeftFormat] = FORMATS) -> AdapterConfig:
    """The config that PEFT's settings describe.

    Raises ValueError for a method or a setting that is not implemented here, or an invalid value.

    >>> from_peft({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["v_proj"]}).rank
    2
    """
    kind = raw["peft_type"]
    fits = [form for form in forms if form.peft_type == kind and form.accepts(raw)]
    known = fits[0] if fits else PeftFormat(AdapterConfig, "", {})
    allowed = IGNORED | {"peft_type", *known.fields, *known.fixed}
    problems = [f"peft_type={kind!r}"] * (not fits)
    problems += [f"{key}={raw[key]!r}" for key in raw if key not in allowed and raw[key]]
    for key, value in known.fixed.items():
        if raw.get(key, value) not in (value, *known.harmless.get(key, ())):
            problems.append(f"{key}={raw[key]!r}")
    if problems:
        raise ValueError(f"has settings that are not implemented here: {', '.join(problems)}")
    given = {ours: raw[theirs] for theirs, ours in known.fields.items() if theirs in raw}
    for key in known.required:
        if key not in raw:
            raise ValueError(f"has an invalid setting: {key!r} is missing")
    try:
        return known.config_type(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"has an invalid setting: {error}") from error
