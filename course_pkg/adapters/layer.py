"""What the layers of every method share: a frozen base, named adapters, merging.

A method's layer names its weights in `parts`, draws them in `new_weights`, and computes its
`forward` and, where merging exists, `delta_weight` or `merged_weight`. Everything else is here, so
that one set of functions (`injection`, `adapter_io`) serves every method.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from course_pkg.adapters.argument_checks import read_names, require_adapter_name, require_generator


@dataclass(frozen=True)
class AdapterConfig:
    """The settings that all methods share; each method's config adds its own.

    Attributes:
        target_modules: "all-linear", a list of name endings, or a regex that matches the whole
            name.
        modules_to_save: name endings of modules that are trained in full and saved with the
            adapter, such as a new classification head.
        bias: "none"; the methods that can train biases of the base make it a setting.
    """

    bias: ClassVar[str] = "none"
    target_modules: str | Sequence[str] = field(default="all-linear", kw_only=True)
    modules_to_save: Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        targets = read_names(self.target_modules, "target_modules", whole=True)
        if not targets:
            raise ValueError('target_modules is empty; name at least one module, or "all-linear"')
        object.__setattr__(self, "target_modules", targets)
        saved = read_names(self.modules_to_save, "modules_to_save")
        object.__setattr__(self, "modules_to_save", saved)

    def check_modules(self, names: Sequence[str]) -> None:
        """Raise ValueError if a setting does not fit the names of the target modules."""

    def check_new(self, names: Sequence[str]) -> None:
        """Raise ValueError if a new adapter has a setting that names no target module."""


class AdapterLayer(nn.Module):
    """A frozen layer with any number of named adapters; the base class of the methods' layers.

    Each name in `parts` is a ParameterDict with one tensor for each adapter. The adapters in
    `active` take part in the forward pass. An adapter is fp32 where the base is 16-bit or
    quantized, and in the base's dtype otherwise.

    Args:
        base: the layer to adapt; it is frozen and keeps its bias.
        config: adds a first adapter.
        module_name: the base's name in its model, for settings that differ by module.
    """

    parts: ClassVar[tuple[str, ...]] = ()
    file_keys: ClassVar[dict[str, str]] = {}  # what PEFT's files call a part, if not the same
    config_type: ClassVar[type | None] = AdapterConfig  # None accepts every method's config
    one_active: ClassVar[bool] = False  # whether at most one adapter can be active
    method: ClassVar[str] = "an adapter"  # the method in words
    wraps: ClassVar[str] = "an nn.Linear"  # the kind of module, in words

    def __init__(
        self,
        base: nn.Module,
        config: Any = None,
        adapter_name: str = "default",
        *,
        generator: torch.Generator | None = None,
        module_name: str = "",
    ) -> None:
        super().__init__()
        self.module_name = module_name
        if not self.accepts(base):
            raise TypeError(f"{self.method} wraps {self.wraps}, got {type(base).__name__}")
        self.base = base.requires_grad_(False)
        for part in self.parts:
            setattr(self, part, nn.ParameterDict())
        self.configs: dict[str, Any] = {}
        self.active: list[str] = []
        self.disabled = False
        self.register_parameter(
            "unmerged_weight", None
        )  # the original W, while base.weight is merged
        self.register_state_dict_post_hook(_save_unmerged)
        if config is not None:
            self.add_adapter(adapter_name, config, generator=generator)

    @classmethod
    def accepts(cls, module: nn.Module) -> bool:
        """Whether this class can wrap the module: by default nn.Linear and GPT-2's Conv1D."""
        return isinstance(module, nn.Linear) or is_conv1d(module)

    @property
    def in_features(self) -> int:
        return self.base.nx if is_conv1d(self.base) else self.base.in_features

    @property
    def out_features(self) -> int:
        return self.base.nf if is_conv1d(self.base) else self.base.out_features

    def new_weights(self, config: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """The initial weights of an adapter, one for each of `parts`, on the CPU."""
        raise NotImplementedError

    def delta_weight(self, name: str) -> Tensor:
        """What one adapter adds to the weight, (out_features, in_features); fp32 or fp64."""
        raise NotImplementedError(f"{self.method} can't be merged into its base")

    def merged_weight(self) -> Tensor:
        """The weight with the active adapters in it, (out, in) even for Conv1D; fp32 or fp64."""
        delta = sum(self.delta_weight(name) for name in self.active)
        return self.base_weight().to(delta.dtype) + delta

    def add_adapter(
        self, name: str, config: Any, *, generator: torch.Generator | None = None
    ) -> None:
        """Add an adapter whose effect is none before it is trained; the first one becomes active.

        The generator, on the CPU, draws the weights; by default a new one with seed 0.
        """
        if self.config_type not in (None, type(config)):
            raise TypeError(
                f"this module has {self.method}, which takes a {self.config_type.__name__}, got "
                f"{type(config).__name__}; one module has adapters of one method"
            )
        self._require_unmerged("add an adapter")
        require_adapter_name(name)
        if name in self.configs:
            raise ValueError(f"adapter {name!r} already exists in this layer")
        require_generator(generator)
        self.add_weights(name, config, generator or torch.Generator().manual_seed(0))
        self.configs[name] = config
        self.set_active(self.active or [name])

    def add_weights(self, name: str, config: Any, generator: torch.Generator) -> None:
        weights = self.new_weights(config, generator)
        for part in self.parts:
            getattr(self, part)[name] = nn.Parameter(weights[part].to(self.base.weight.device))

    def base_weight(self) -> Tensor:
        """The base's weight as (out_features, in_features), dequantized if need be; no gradient."""
        dequantize = getattr(self.base, "dequantized_weight", None)
        weight = dequantize() if dequantize else self.base.weight.detach()
        return weight.T if is_conv1d(self.base) else weight

    def adapter_dtype(self) -> torch.dtype:
        """The dtype of new adapters: the base's if that is fp32 or fp64, and otherwise fp32."""
        dtype = self.base.weight.dtype
        return dtype if dtype in (torch.float32, torch.float64) else torch.float32

    def weights_of(self, name: str) -> dict[str, nn.Parameter]:
        return {part: getattr(self, part)[name] for part in self.parts}

    def set_active(self, names: str | Sequence[str]) -> None:
        """Activate and unfreeze exactly these adapters; ignore names that this layer lacks."""
        self._require_unmerged("change the active adapters")
        names = [names] if isinstance(names, str) else names
        active = [name for name in dict.fromkeys(names) if name in self.configs]
        if self.one_active and len(active) > 1:
            raise ValueError(f"only one adapter with {self.method} can be active, got {active}")
        self.active = active
        for name in self.configs:
            for weight in self.weights_of(name).values():
                weight.requires_grad_(name in self.active)

    @property
    def merged(self) -> bool:
        """Whether the base's weight currently includes the active adapters."""
        return self.unmerged_weight is not None

    def merge(self) -> None:
        """Put the active adapters into base.weight, so that the layer costs as much as the base.

        The sum is computed in fp32 (or fp64) and rounded once. The layer keeps a copy of W until
        `unmerge`. While merged, the adapters get no gradient.
        """
        if self.merged or not self.active:
            return
        if self.disabled:
            raise RuntimeError("the adapters are disabled; leave disable_adapters() before merging")
        weight = self.base.weight
        if not weight.is_floating_point():
            raise ValueError(
                f"cannot merge into a quantized weight ({weight.dtype}); dequantize it first"
            )
        total = self.merged_weight().to(weight.dtype)
        total = total.T.contiguous() if is_conv1d(self.base) else total
        if not torch.isfinite(total).all():
            raise ValueError(
                f"merging {self.active} gives weights that are not finite in {weight.dtype}; "
                "the adapter has NaN or infinite entries, or its scale is too large"
            )
        self.unmerged_weight = weight
        self.base.weight = nn.Parameter(total, requires_grad=False)

    def unmerge(self) -> None:
        """Restore the weight saved by `merge`; do nothing if not merged."""
        if self.merged:
            self.base.weight = self.unmerged_weight
            self.unmerged_weight = None

    def without_adapters(self) -> nn.Module:
        """The module that takes this layer's place when its adapters are removed: its base."""
        return self.base

    @property
    def weight(self) -> nn.Parameter:
        """The base's weight; some models read it (T5 reads its dtype)."""
        return self.base.weight

    @property
    def bias(self) -> nn.Parameter | None:
        """The base's bias, which only merging IA³ changes."""
        return self.base.bias

    def extra_repr(self) -> str:
        return f"adapters={list(self.configs)}, active={self.active}, merged={self.merged}"

    def _require_unmerged(self, action: str) -> None:
        if self.merged:
            raise RuntimeError(f"cannot {action} while merged; call unmerge() first")

    def _load_from_state_dict(self, *args, **kwargs) -> None:
        self._require_unmerged("load a state dict")
        super()._load_from_state_dict(*args, **kwargs)


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is transformers' Conv1D (GPT-2), which stores the weight as (in, out)."""
    return type(module).__name__ == "Conv1D" and "pytorch_utils" in type(module).__module__


def _save_unmerged(layer: AdapterLayer, state: dict, prefix: str, _metadata: dict) -> None:
    """Save W in a state dict, not the merged weight: loading that would apply the adapter twice."""
    if layer.unmerged_weight is not None:
        state[f"{prefix}base.weight"] = state.pop(f"{prefix}unmerged_weight")
