"""LoRA on pruned weights that leaves them pruned: the mask also covers the update::

    plain LoRA      y = (M∘W) x + s B A x            merged: M∘W + s B A, dense again
    masked LoRA     y = (M∘W + s M∘(B A)) x          merged: zeros stay zeros

Source: Muñoz et al. 2024, "SQFT" (SparsePEFT).
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_pkg.adapters.injection import adapter_layers, inject, merge_adapters
from course_pkg.adapters.lora import LoRAConfig, LoRALinear
from course_pkg.adapters.targets import replace_module


class MaskedLoRALinear(LoRALinear):
    """A frozen pruned nn.Linear with LoRA adapters whose updates have the weight's mask.

    It is saved as plain LoRA: load it with `load_adapter`, and pass the masks again.
    """

    method = "LoRA with a mask"
    wraps = "a plain nn.Linear"
    mask: Tensor

    def __init__(self, base: nn.Module, *args: Any, **named: Any) -> None:
        super().__init__(base, *args, **named)
        mask = torch.ones_like(base.weight, dtype=torch.bool)
        self.register_buffer("mask", mask)

    @classmethod
    def accepts(cls, module: nn.Module) -> bool:
        return isinstance(module, nn.Linear) and module.weight.is_floating_point()

    @classmethod
    def from_lora(cls, layer: LoRALinear) -> "MaskedLoRALinear":
        """The same layer, base, adapters and all, with a mask."""
        masked = cls(layer.base, module_name=layer.module_name)
        for part in cls.parts:
            setattr(masked, part, getattr(layer, part))
        masked.configs = layer.configs
        masked.set_active(layer.active)
        return masked.train(layer.training)

    @torch.no_grad()
    def prune(self, mask: Tensor) -> None:
        """Remove the weights where the mask is False, besides those that are removed already."""
        self._require_unmerged("prune")
        require_mask(mask, self.base.weight, self.module_name)
        self.mask.logical_and_(mask)
        self.base.weight.mul_(self.mask)

    def forward(self, x: Tensor) -> Tensor:  # x: (..., in_features)
        """(M∘W) x + b + scaling * (M∘(B A)) dropout(x), summed over the active adapters."""
        result = self.base(x)  # (..., out_features)
        if self.merged or self.disabled:
            return result
        dtype = result.dtype
        for name in self.active:
            A = self.lora_A[name]
            B = self.lora_B[name]
            z = x.to(A.dtype)
            if dropout := self.configs[name].dropout:
                z = F.dropout(z, dropout, self.training)
            result = result + F.linear(z, self.scaling(name) * self.mask * (B @ A))
        return result.to(dtype)

    def delta_weight(self, name: str) -> Tensor:
        return super().delta_weight(name) * self.mask


def adapt_pruned(model: nn.Module, config: LoRAConfig, masks: Mapping[str, Tensor]) -> None:
    """Add a LoRA adapter, in place, whose updates keep the model's pruned weights at 0."""
    if not isinstance(config, LoRAConfig):
        raise TypeError(f"config must be a LoRAConfig, got {config!r:.80}")
    inject(model, config)
    mask_adapters(model, masks)


def mask_adapters(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Turn every LoRA of a linear layer into a masked one, in place."""
    layers = {n: la for n, la in adapter_layers(model).items() if type(la) is LoRALinear}
    for name, layer in layers.items():
        if name in masks:
            require_mask(masks[name], layer.base.weight, name)
    for name, layer in layers.items():
        masked = MaskedLoRALinear.from_lora(layer)
        replace_module(model, layer, masked)
        if name in masks:
            masked.prune(masks[name])


def merge_with_masks(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Merge adapters of any kind, and set the merged weights to 0 where the masks are False.

    A plain LoRA's merged model is then another function than the trained one.
    """
    layers = adapter_layers(model)
    for name, layer in layers.items():
        if name in masks:
            require_mask(masks[name], layer.base.weight, name)
    merge_adapters(model)
    with torch.no_grad():
        for name, layer in layers.items():
            if name in masks:
                layer.base.weight.mul_(masks[name])


def require_mask(mask: Tensor, weight: Tensor, name: str) -> Tensor:
    """Return the mask if it is one for this weight; otherwise raise ValueError."""
    if mask.dtype != torch.bool or mask.shape != weight.shape:
        raise ValueError(
            f"the mask of {name or 'a layer'} must be bool, {tuple(weight.shape)}, got "
            f"{mask.dtype}, {tuple(mask.shape)}"
        )
    return mask
