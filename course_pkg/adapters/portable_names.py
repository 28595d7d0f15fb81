"""What an adapter's file says of its base, in words that hold on other machines too.

Chapter: adapters/lora-training.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from course_pkg.lm import smollm2

# The hub's cache: a folder for each model, and in it one for each of its versions.
HUB_FOLDER = re.compile(r".*[/\\]models--([^/\\]+?)--([^/\\]+)[/\\]snapshots[/\\][^/\\]+[/\\]?")


def base_name(model: nn.Module) -> str | None:
    """The base's name for `load`: the course's, the hub's id, or the folder as it was given.

    None if the model was not loaded from anywhere.

    >>> from course_pkg.lm.load import load
    >>> base_name(load("tiny").model) is None
    True
    """
    name = getattr(getattr(model, "config", None), "name_or_path", None)
    if not name:
        return None
    if Path(name) == smollm2.cached_folder():
        return smollm2.NAME
    if hub := HUB_FOLDER.fullmatch(name):
        return "/".join(hub.groups())
    return name


def shortest_targets(names: Sequence[str], others: Sequence[str]) -> list[str] | str:
    """The fewest name endings that match all these names and none of the others.

    An ending starts behind a dot, as in `targets.matches`. Each name's shortest ending that fits
    none of the others is the one that covers the most names, so these are the fewest. Where even a
    whole name is another name's ending, the result is a regex for the names.

    >>> shortest_targets(["h.0.q_proj", "h.1.q_proj", "h.0.up"], ["h", "h.0", "h.1", "h.1.up"])
    ['0.up', 'q_proj']
    """
    taken = {ending for other in others for ending in _endings(other)}
    if taken.intersection(names):
        return "|".join(re.escape(name) for name in names)
    return sorted({next(e for e in _endings(name) if e not in taken) for name in names})


def _endings(name: str) -> list[str]:
    """The endings of a name behind a dot, shortest first, and the name itself."""
    parts = name.split(".")
    return [".".join(parts[start:]) for start in reversed(range(len(parts)))]
