"""Bottleneck adapters as a method of PEFT's, so that `get_peft_model` builds them.

PEFT needs a config (a dataclass with a peft_type), a layer (a BaseTunerLayer, which names its
weights), a model (a BaseTuner, which puts the layer into a module's place), a call of
`register_peft_method`, and an entry in its enum PeftType, which `_add_peft_type` adds. PEFT is in
the package's `parity` extra. Source: PEFT 0.21, register_peft_method and tuners/tuners_utils.py.
"""

from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftConfig
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils import PeftType, register_peft_method
from torch import Tensor, nn

from course_pkg.adapters.bottleneck import BottleneckConfig, BottleneckLinear

PEFT_TYPE = "BOTTLENECK"


def _add_peft_type(name: str) -> None:
    """Add a member to PeftType; an enum has no public function for it."""
    member = str.__new__(PeftType, name)
    member._name_ = member._value_ = name
    setattr(PeftType, name, member)
    PeftType._member_map_[name] = PeftType._value2member_map_[name] = member
    PeftType._member_names_.append(name)


@dataclass
class PeftBottleneckConfig(PeftConfig):
    """PEFT's view of a BottleneckConfig."""

    size: int = 64
    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    modules_to_save: list[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType(PEFT_TYPE)


class PeftBottleneckLayer(nn.Module, BaseTunerLayer):
    """A linear layer with bottleneck adapters, by PEFT's rules for names.

    PEFT finds the weights by `adapter_layer_names`, and the frozen layer as `base_layer`.
    """

    adapter_layer_names = BottleneckLinear.parts

    def __init__(self, base_layer: nn.Module, adapter_name: str, size: int) -> None:
        super().__init__()
        self.base_layer = base_layer
        for part in self.adapter_layer_names:
            setattr(self, part, nn.ParameterDict())
        self.update_layer(adapter_name, size)

    def update_layer(self, adapter_name: str, size: int) -> None:
        """Add an adapter with the weights that BottleneckLinear would draw from torch's state."""
        layer = BottleneckLinear(self.base_layer)
        weights = layer.new_weights(BottleneckConfig(size), torch.default_generator)
        for part, weight in weights.items():
            getattr(self, part)[adapter_name] = nn.Parameter(weight)
        self._move_adapter_to_device_of_base_layer(adapter_name)
        self.set_adapter(self.active_adapters)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        h = self.base_layer(x, *args, **kwargs)
        if self.disable_adapters:
            return h
        dtype = h.dtype
        for name in self.active_adapters:
            if name not in self.bottleneck_down:
                continue
            down, down_bias, up, up_bias = (
                getattr(self, p)[name] for p in self.adapter_layer_names
            )
            z = nn.functional.gelu(nn.functional.linear(h.to(down.dtype), down, down_bias))
            h = h + nn.functional.linear(z, up, up_bias)
        return h.to(dtype)

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        raise NotImplementedError("a bottleneck adapter can't be merged into its base")


class PeftBottleneckModel(BaseTuner):
    """Puts PeftBottleneckLayer in the place of each module that the config names."""

    prefix = "bottleneck_"
    tuner_layer_cls = PeftBottleneckLayer
    target_module_mapping: dict[str, list[str]] = {"llama": ["o_proj", "down_proj"]}  # noqa: RUF012

    def _create_and_replace(
        self,
        peft_config: PeftBottleneckConfig,
        adapter_name: str,
        target: nn.Module,
        target_name: str,
        parent: nn.Module,
        current_key: str,
    ) -> None:
        if isinstance(target, PeftBottleneckLayer):
            target.update_layer(adapter_name, peft_config.size)
            return
        layer = PeftBottleneckLayer(target, adapter_name, peft_config.size)
        self._replace_module(parent, target_name, layer, target)


def register() -> None:
    """Make the method known to PEFT; a second call does nothing."""
    if PEFT_TYPE in PeftType.__members__:
        return
    _add_peft_type(PEFT_TYPE)
    register_peft_method(
        name=PEFT_TYPE.lower(), config_cls=PeftBottleneckConfig, model_cls=PeftBottleneckModel
    )


register()
