"""Checks that adapters' settings share: names, patterns by module, alpha and biases.

Chapter: adapters/peft.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from course_pkg.arguments import require_number

Bias = Literal["none", "all", "lora_only"]


def read_names(value: Any, setting: str, whole: bool = False) -> str | tuple[str, ...]:
    """A setting of names as a sorted tuple; or, if `whole`, a string as it is.

    Raises TypeError for anything but strings.

    >>> read_names(["v_proj", "q_proj"], "target_modules")
    ('q_proj', 'v_proj')
    """
    if isinstance(value, str) and whole:
        return value
    value = () if value is None and not whole else value
    names = tuple(value) if isinstance(value, Iterable) else (None,)
    if isinstance(value, str) or not all(isinstance(name, str) for name in names):
        kinds = "a string or strings" if whole else "a list of strings"
        raise TypeError(f"{setting} must be {kinds}, got {value!r:.80}")
    return tuple(sorted(names))


def read_pattern(pattern: Mapping[str, Any] | None, setting: str) -> dict[str, Any]:
    """A setting by module as a dict; its order counts (see `first_match`).

    Raises TypeError for another type, and ValueError for a key that is not a regex.
    """
    pattern = {} if pattern is None else pattern
    if not isinstance(pattern, Mapping) or not all(isinstance(key, str) for key in pattern):
        raise TypeError(f"{setting} must be a dict with strings as keys, got {pattern!r:.80}")
    for key in pattern:
        try:
            re.compile(key)
        except re.error as error:
            raise ValueError(f"{setting} has {key!r}, which is not a regex: {error}") from None
    return dict(pattern)


def first_match(pattern: Mapping[str, Any], module_name: str, default: Any) -> Any:
    """The value of the first key that is a regex for the name or its last parts, as in PEFT.

    >>> first_match({"0.up": 1, "u?": 2, "up": 3}, "layers.0.up", default=4)
    1
    """
    for key, value in pattern.items():
        if re.match(rf"(.*\.)?({key})$", module_name):
            return value
    return default


def require_alpha(alpha: Any, name: str) -> None:
    """Raise ValueError unless alpha is positive and finite, TypeError unless it is a number."""
    if not 0 < require_number(alpha, name) < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {alpha}")


def require_bias(bias: Any) -> None:
    """Raise ValueError unless it is one of PEFT's choices of biases to train."""
    if bias not in get_args(Bias):
        choices = ", ".join(map(repr, get_args(Bias)))
        raise ValueError(f"bias must be one of {choices}; got {bias!r:.80}")
