"""Modules that are trained in full beside an adapter, such as a new classification head.

PEFT calls the setting `modules_to_save`: the adapter's file contains the whole module.
Chapter: adapters/peft.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.adapters.layer import AdapterConfig, AdapterLayer


class SavedModule(AdapterLayer):
    """A frozen module, and for each adapter a trainable copy of it that replaces it.

    base: any module with parameters. At most one copy can be active.

    >>> head = SavedModule(nn.Linear(4, 2), AdapterConfig())
    >>> sum(p.numel() for p in head.parameters() if p.requires_grad)
    10
    """

    method = "training in full (modules_to_save)"
    wraps = "a module with parameters"

    def __init__(
        self,
        base: nn.Module,
        config: AdapterConfig | None = None,
        adapter_name: str = "default",
        *,
        generator: torch.Generator | None = None,
        module_name: str = "",
    ) -> None:
        self._merged = False
        super().__init__(base, module_name=module_name)
        self.copies = nn.ModuleDict()
        if config is not None:
            self.add_adapter(adapter_name, config, generator=generator)

    @classmethod
    def accepts(cls, module: nn.Module) -> bool:
        """Whether the module has parameters and is no adapter layer."""
        return not isinstance(module, AdapterLayer) and any(True for _ in module.parameters())

    def add_adapter(
        self, name: str, config: Any, *, generator: torch.Generator | None = None
    ) -> None:
        """Add a copy of the module as it is now. Raises what `AdapterLayer.add_adapter` raises."""
        self._require_new(name)
        self.copies[name] = copy.deepcopy(self.base)
        self.configs[name] = config
        self.set_active(self.active or [name])

    def weights_of(self, name: str) -> dict[str, nn.Parameter]:
        """The parameters of one adapter's copy."""
        return dict(self.copies[name].named_parameters())

    def set_active(self, names: str | Sequence[str]) -> None:
        """Activate one of these adapters. Raises ValueError if this layer has several of them."""
        names = [names] if isinstance(names, str) else names
        if len(here := [name for name in dict.fromkeys(names) if name in self.configs]) > 1:
            raise ValueError(f"a module trained in full can't be in several adapters: {here}")
        super().set_active(names)

    def state_of(self, name: str) -> dict[str, Tensor]:
        """One adapter's copy as its file has it: parameters and buffers."""
        return self.copies[name].state_dict(keep_vars=True)

    @property
    def in_use(self) -> nn.Module:
        """The active copy, or the original where none is active."""
        return self.base if self.disabled or not self.active else self.copies[self.active[0]]

    @property
    def weight(self) -> nn.Parameter:
        """The weight of the module in use."""
        return self.in_use.weight

    @property
    def bias(self) -> nn.Parameter | None:
        """The bias of the module in use."""
        return self.in_use.bias

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """What the module in use computes."""
        return self.in_use(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Some models read attributes of their modules; they get those of the module in use."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "in_use" or "copies" not in self.__dict__.get("_modules", ()):
                raise  # while this module is being built
            return getattr(self.in_use, name)

    @property
    def merged(self) -> bool:
        """Whether removing the adapters leaves the active copy."""
        return self._merged

    def merge(self) -> None:
        """Let the active copy stay when the adapters are removed. RuntimeError while disabled."""
        if self.disabled:
            raise RuntimeError("the adapters are disabled; leave disable_adapters() before merging")
        self._merged = bool(self.active)

    def unmerge(self) -> None:
        """Let the original module stay when the adapters are removed."""
        self._merged = False

    def without_adapters(self) -> nn.Module:
        """The active copy if merged, and otherwise the original module."""
        return self.copies[self.active[0]] if self.merged else self.base
