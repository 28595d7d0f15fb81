"""Public names of a folder that are imported on first use (PEP 562).

A folder exports names from its modules, but importing the folder alone loads none of them, so it
stays instant even where they need torch.

Chapter: setup.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    folder: str, names_of: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """What the `__init__` of a folder assigns to `__all__`, `__getattr__` and `__dir__`.

    folder: its `__name__`. names_of: for each module, the names that it gives, as one string.

    >>> names, getattr_of_folder, _ = lazy_exports("example", {"math": "pi tau"})
    >>> names, getattr_of_folder("pi")
    (['pi', 'tau'], 3.141592653589793)
    """
    module_of = {name: module for module, names in names_of.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {folder!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name]), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[folder]), *module_of})

    return sorted(module_of), get, names
