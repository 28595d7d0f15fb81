"""Argument checks that the whole package shares; each returns the value if it is valid.

In Python a string is also a sequence of strings, and True an integer: a text in place of a list
would be processed letter by letter. Public functions therefore check their arguments first; what
they call does not check again.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any


def require_string(value: Any, name: str = "a text", fix: str = "") -> str:
    """Return the value if it is a string (which may be empty); otherwise raise TypeError.

    Args:
        name: what to call the value in the message.
        fix: how to correct it, added to the message.
    """
    if not isinstance(value, str):
        problem = f"{name} must be a string, got {value!r:.80} ({type(value).__name__})"
        raise TypeError(f"{problem}; {fix}" if fix else problem)
    return value


def require_list(value: Any, name: str, fix: str) -> Sequence:
    """Return the value if it is a list or another sequence, but not a string; else TypeError."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a list, got {value!r:.80}; {fix}")
    return value


def text_list(texts: str | Iterable[str], name: str = "text") -> list[str]:
    """Return one text or several as a list of strings; a string may be empty, the list may not."""
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable):
        raise TypeError(
            f"{name}s must be a string or a list of strings, "
            f"got {texts!r:.80} ({type(texts).__name__})"
        )
    listed = [require_string(text, f"{name} {number}") for number, text in enumerate(texts)]
    if not listed:
        raise ValueError(f"{name}s is empty; give at least one {name} (it may be an empty string)")
    return listed


def require_choice(value: Any, name: str, choices: Collection[str]) -> str:
    """Return the value if it is one of the choices; otherwise raise ValueError."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r:.80}")
    return value


def require_integer(value: Any, name: str, least: int = 1) -> int:
    """Return the value if it is an integer of at least `least`; otherwise raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return value


def require_number(value: Any, name: str) -> float:
    """Return the value if it is an integer or a float, possibly infinite or NaN; else TypeError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r:.80}")
    return value


def require_between(value: Any, name: str, low: float, high: float, closed: bool = False) -> float:
    """Return the value if low < value < high (low <= value if `closed`); else ValueError."""
    require_number(value, name)
    above = value >= low if closed else value > low
    if not (above and value < high):
        lower = f"at least {low}" if closed else f"above {low}"
        upper = "finite" if high == math.inf else f"below {high}"
        raise ValueError(f"{name} must be {lower} and {upper}, got {value}")
    return value


def require_bool(value: Any, name: str) -> bool:
    """Return the value if it is True or False; otherwise raise TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r:.80}")
    return value
