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

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """What the active copy computes, or the original where none is active."""
        use = self.base if self.disabled or not self.active else self.copies[self.active[0]]
        return use(*args, **kwargs)

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
