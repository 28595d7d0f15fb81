"""The settings of each method as PEFT writes them into adapter_config.json.

Reading refuses settings that this package does not implement (such as `layers_to_transform`)
instead of ignoring them. Chapter: adapters/peft.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.bottleneck import BottleneckConfig
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.ia3 import IA3Config
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
    that must be there. ignored: settings that PEFT writes and doesn't use. accepts: whether a file
    with PEFT's name is of this method.
    """

    config_type: type[AdapterConfig]
    peft_type: str
    fields: Mapping[str, str]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    harmless: Mapping[str, tuple] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    accepts: Callable[[Mapping[str, Any]], bool] = lambda raw: True


# Initializations that do not change the base weights; PiSSA and OLoRA, for example, do.
_INITIALIZATIONS = (True, False, "gaussian", "eva", "orthogonal")
_PLAIN = {"init_lora_weights": True}
_ALPHA = {"lora_alpha": "alpha", "lora_dropout": "dropout", "bias": "bias"}
_PATTERNS = {"rank_pattern": "rank_pattern", "alpha_pattern": "alpha_pattern"}
_LORA = {"r": "rank", "use_rslora": "use_rslora"} | _ALPHA | _PATTERNS
# How PEFT's other initializations change the base, and what to do.
_CHANGED_BASE = (
    "; this start changes the base's weights, so the file does not fit the base itself: convert it "
    "to plain LoRA in PEFT, with save_pretrained(folder, path_initial_model_for_weight_conversion="
    "start), where `start` is a folder with the adapter as it was before training"
)
_STARTS = ("pissa", "olora", "corda", "lora_ga")  # those that PEFT can convert
_ADALORA = {
    "init_r": "initial_rank", "target_r": "target_rank", "deltaT": "delta_t",
    **{name: name for name in ("total_step", "tinit", "tfinal", "beta1", "beta2",
                               "orth_reg_weight", "rank_pattern")},
}  # fmt: skip
FORMATS = (
    PeftFormat(
        LoRAConfig, "LORA", _LORA | SHARED, _PLAIN, {"init_lora_weights": _INITIALIZATIONS},
        ("r", "lora_alpha", "target_modules"), accepts=lambda raw: not raw.get("use_dora"),
    ),
    PeftFormat(
        DoRAConfig, "LORA", _LORA | SHARED, _PLAIN | {"use_dora": True},
        {"init_lora_weights": _INITIALIZATIONS}, ("r", "lora_alpha", "target_modules"),
        accepts=lambda raw: bool(raw.get("use_dora")),
    ),
    PeftFormat(
        AdaLoRAConfig, "ADALORA", _ADALORA | _ALPHA | SHARED, _PLAIN,
        {"init_lora_weights": (True, False)},
        ("total_step", "init_r", "lora_alpha", "target_modules"),
        ("r", "use_rslora", "alpha_pattern"),
    ),
    PeftFormat(
        IA3Config, "IA3", {"feedforward_modules": "feedforward_modules"} | SHARED,
        {"init_ia3_weights": True}, {"init_ia3_weights": (True, False)},
        ("target_modules", "feedforward_modules"),
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
        start = str(raw.get("init_lora_weights", "")).lower().startswith(_STARTS)
        advice = _CHANGED_BASE if start else ""
        listed = ", ".join(problems)
        raise ValueError(f"has settings that are not implemented here: {listed}{advice}")
    given = {ours: raw[theirs] for theirs, ours in known.fields.items() if theirs in raw}
    for key in known.required:
        if key not in raw:
            raise ValueError(f"has an invalid setting: {key!r} is missing")
    try:
        return known.config_type(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"has an invalid setting: {error}") from error
