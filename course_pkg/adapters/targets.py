"""Select the modules that get an adapter: by name endings, by regex, or all linear ones.

The rules are PEFT's: a list matches whole names or endings after a dot; a string is a regex for the
whole name; "all-linear" is every nn.Linear except the output embedding. Stricter than PEFT: a list
entry that matches nothing is an error.
"""

import difflib
import re
from collections.abc import Sequence

from torch import nn

from course_pkg.adapters.argument_checks import regex_matches, require_model
from course_pkg.adapters.layer import AdapterLayer
from course_pkg.adapters.lora import LoRALinear


def matches(name: str, target_modules: str | Sequence[str]) -> bool:
    """Whether a module's full name matches a list of endings or a regex.

    >>> matches("layers.0.q_proj", ["q_proj"]), matches("layers.0.q_proj", "q_proj")
    (True, False)
    """
    if isinstance(target_modules, str):
        return regex_matches(target_modules, name, "target_modules")
    return any(name == target or name.endswith(f".{target}") for target in target_modules)


def in_saved_module(name: str, modules_to_save: Sequence[str]) -> bool:
    """Whether PEFT counts a module as trained in full, so that it can't be a target.

    An entry is a regex for whole parts of the name, unlike in `find_saved_modules`.
    """
    for entry in modules_to_save:
        part = rf"(^|.*\.){entry}($|\..*)"
        if regex_matches(part, name, "modules_to_save", whole=False):
            return True
    return False


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` in place of `old` under every name that it has in the model.

    >>> shared = nn.Linear(2, 2)
    >>> model = nn.Sequential(shared, nn.ReLU(), shared)
    >>> replace_module(model, shared, nn.Identity()); model[0] is model[2]
    True
    """
    modules = list(model.named_modules(remove_duplicate=False))
    for name in [name for name, module in modules if module is old]:
        model.set_submodule(name, new)


def takes_all(target_modules: str | Sequence[str]) -> bool:
    """Whether the setting is "all-linear"."""
    return isinstance(target_modules, str) and target_modules.lower() == "all-linear"


def selected_modules(
    model: nn.Module, target_modules: str | Sequence[str], modules_to_save: Sequence[str] = ()
) -> dict[str, nn.Module]:
    """The modules that target_modules selects, by name, without what modules_to_save contains."""
    every = takes_all(target_modules)
    modules = linear_modules(model) if every else adaptable_modules(model)
    return {
        name: module
        for name, module in modules.items()
        if (every or matches(name, target_modules)) and not in_saved_module(name, modules_to_save)
    }


def linear_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Every nn.Linear and Conv1D (GPT-2), adapted or not, except the output embedding, by name."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    return {
        name: module
        for name, module in adaptable_modules(model).items()
        if module is not head and LoRALinear.accepts(_base(module))
    }


def adaptable_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Every submodule by its name in the base model, without the parts of an adapter layer."""
    modules: dict[str, nn.Module] = {}
    inside: tuple[str, ...] = ()
    for name, module in require_model(model).named_modules():
        if not name or name.startswith(inside or ("\0",)):
            continue
        modules[name] = module
        if isinstance(module, AdapterLayer):
            inside = (*inside, f"{name}.")
    return modules


def find_targets(
    model: nn.Module,
    target_modules: str | Sequence[str],
    kinds: Sequence[type[AdapterLayer]] = (LoRALinear,),
    modules_to_save: Sequence[str] = (),
) -> list[str]:
    """The names of the modules that target_modules selects, in the model's order.

    Args:
        kinds: the layer classes of the method.
        modules_to_save: modules that are trained in full; they and what they contain are left out.
    """
    targets = selected_modules(model, target_modules)
    if takes_all(target_modules) and not targets:
        raise ValueError(f"{type(model).__name__} has no nn.Linear to adapt")
    if isinstance(target_modules, str):
        if not targets:
            raise ValueError(_nothing_matches(target_modules, model))
    else:
        for part in target_modules:
            if not any(matches(name, [part]) for name in targets):
                raise ValueError(_nothing_matches(part, model))
    targets = selected_modules(model, target_modules, modules_to_save)
    if not targets:
        raise ValueError(
            f"modules_to_save {list(modules_to_save)} is or contains every module that "
            f"target_modules {target_modules!r} selects; a module can have only one"
        )
    for name, module in targets.items():
        if isinstance(module, AdapterLayer) and type(module) not in kinds:
            raise TypeError(
                f"{name!r} already has an adapter of another method ({module.method}); "
                "remove_adapters(model) first"
            )
        reader = _reader_of_weight(model, name)
        if reader or not any(kind.accepts(_base(module)) for kind in kinds):
            raise TypeError(_not_adaptable(name, module, kinds, reader))
    return list(targets)


def shortest_targets(names: Sequence[str], others: Sequence[str]) -> list[str] | str:
    """The fewest name endings that match all these names and none of the others.

    Each name's shortest ending behind a dot that fits none of the others covers the most names.
    Where even a whole name is another name's ending, the result is a regex for the names.
    """
    taken = {ending for other in others for ending in _endings(other)}
    if taken.intersection(names):
        return "|".join(re.escape(name) for name in names)
    return sorted({next(e for e in _endings(name) if e not in taken) for name in names})


def _endings(name: str) -> list[str]:
    """The endings of a name behind a dot, shortest first, and the name itself."""
    parts = name.split(".")
    return [".".join(parts[start:]) for start in reversed(range(len(parts)))]


def _base(module: nn.Module) -> nn.Module:
    """What an adapter layer wraps, or the module itself."""
    return module.base if isinstance(module, AdapterLayer) else module


def _nothing_matches(target: str, model: nn.Module) -> str:
    linear = list(linear_modules(model))
    leaves = list(dict.fromkeys(name.rpartition(".")[2] for name in linear))
    close = difflib.get_close_matches(target, leaves + linear, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    regex = ""
    if target in leaves:  # a string is a regex, which must match the whole name
        regex = f"; a string is a regex for the whole name, so write [{target!r}] instead"
    return (
        f"target_modules {target!r} matches no module of {type(model).__name__}"
        f"{regex or hint} (linear modules end in: {', '.join(leaves) or 'there are none'})"
    )


def _not_adaptable(
    name: str, module: nn.Module, kinds: Sequence[type[AdapterLayer]], reader: str
) -> str:
    if reader:
        return (
            f"target {name!r} can't have an adapter: {reader} reads this layer's weight without "
            "calling it, so the adapter would have no effect; name other modules"
        )
    inner = [inner for inner, child in module.named_modules() if isinstance(child, nn.Linear)]
    why = f"it contains {', '.join(inner[:8])}; name those" if any(inner) else "choose others"
    wrapped = " and ".join(f"{kind.method} wraps {kind.wraps}" for kind in kinds)
    return f"target {name!r} is of type {type(module).__name__}; {wrapped}: {why}"


def _reader_of_weight(model: nn.Module, name: str) -> str:
    """The module that reads the named layer's weight and never calls it, or calls it seldom."""
    parent, _, leaf = name.rpartition(".")
    if isinstance(model.get_submodule(name), nn.modules.linear.NonDynamicallyQuantizableLinear):
        return "nn.MultiheadAttention"
    mixer = type(model.get_submodule(parent)).__name__
    # PEFT refuses out_proj, which the CUDA kernel reads; dt_proj has no effect in PEFT either.
    return mixer if "Mamba" in mixer and leaf in ("out_proj", "dt_proj") else ""
