"""Select the modules that are trained in full, by PEFT's rule for modules_to_save.

An entry matches every name that ends with it, also within a word: "norm" finds "model.norm" and
"layers.0.input_layernorm". Modules without parameters are left out. Chapter: adapters/peft.
"""

import difflib
from collections.abc import Sequence

from torch import nn

from course_pkg.adapters.layer import AdapterLayer
from course_pkg.adapters.saved_module import SavedModule
from course_pkg.adapters.targets import adaptable_modules


def find_saved_modules(
    model: nn.Module, endings: Sequence[str], targets: Sequence[str]
) -> list[str]:
    """The names of the modules to train in full: those with parameters that end with an entry.

    Raises ValueError if an entry matches nothing or only modules without parameters, or if a module
    contains a target or another one, is quantized, or has an adapter of a method.

    >>> model = nn.ModuleDict({"up": nn.Linear(2, 2), "in_norm": nn.LayerNorm(2)})
    >>> find_saved_modules(model, ["norm"], ["up"])
    ['in_norm']
    """
    modules = adaptable_modules(model)
    for ending in endings:
        selected = [module for name, module in modules.items() if name.endswith(ending)]
        if not selected:
            close = difflib.get_close_matches(ending, {n.rpartition(".")[2] for n in modules})
            hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise ValueError(f"modules_to_save {ending!r} matches no module{hint}")
        if not any(map(_has_parameters, selected)):
            raise ValueError(f"modules_to_save {ending!r} has no parameters")
    names = saved_module_names(model, endings)
    for name in names:
        for other in [*targets, *(n for n in names if n != name)]:
            if other == name or other.startswith(f"{name}."):
                raise ValueError(
                    f"modules_to_save {name!r} is or contains {other!r}, "
                    "which has an adapter too; it can have only one"
                )
        if isinstance(modules[name], AdapterLayer) and not isinstance(modules[name], SavedModule):
            raise ValueError(
                f"modules_to_save {name!r} has an adapter of a method in this model; "
                "it can have only one"
            )
        if not all(p.is_floating_point() for p in modules[name].parameters()):
            raise ValueError(f"modules_to_save {name!r} is quantized, so it can't be trained")
    return names


def saved_module_names(model: nn.Module, endings: Sequence[str]) -> list[str]:
    """The names of the modules with parameters that end with one of the entries of modules_to_save.

    >>> saved_module_names(nn.ModuleDict({"lm_head": nn.Linear(2, 2)}), ["head", "classifier"])
    ['lm_head']
    """
    return [
        name
        for name, module in adaptable_modules(model).items()
        if name.endswith(tuple(endings)) and _has_parameters(module)
    ]


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())
