"""Argument checks that modules share: a text must be a string, and a list must be a list.

In Python a string is also a sequence of strings. A text in place of a list, or a list in place
of a text, would be scored letter by letter, and the result would look valid. The metrics
therefore check their arguments first.

Chapter: metrics/comparison.
"""

from collections.abc import Iterable, Mapping
from typing import Any


def require_string(value: Any, name: str = "a text", fix: str = "") -> str:
    """Return the value if it is a string (which may be empty).

    name: what to call the value in the message. fix: how to correct a wrong value; it is added to
    the message. Raises TypeError for any other type.

    >>> require_string("the cat sat")
    'the cat sat'
    >>> require_string(["the", "cat"], "hypothesis", "join the tokens by spaces")
    Traceback (most recent call last):
    ...
    TypeError: hypothesis must be a string, got ['the', 'cat'] (list); join the tokens by spaces
    """
    if not isinstance(value, str):
        problem = f"{name} must be a string, got {value!r:.80} ({type(value).__name__})"
        raise TypeError(f"{problem}; {fix}" if fix else problem)
    return value


def text_list(texts: str | Iterable[str], name: str = "text") -> list[str]:
    """Return one text or several as a list of strings; a string may be empty.

    name: what to call one text in the messages.
    Raises TypeError for anything else, ValueError for an empty list.

    >>> text_list("the cat sat")
    ['the cat sat']
    >>> text_list(line.strip() for line in (" the cat", "sat "))
    ['the cat', 'sat']
    >>> text_list([], "reference")
    Traceback (most recent call last):
    ...
    ValueError: references is empty; give at least one reference (it may be an empty string)
    """
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


def require_integer(value: Any, name: str, least: int = 1) -> int:
    """Return the value if it is an integer of at least `least`; True and False are not accepted.

    Raises ValueError for anything else.

    >>> require_integer(4, "max_order")
    4
    >>> require_integer(2.5, "samples")
    Traceback (most recent call last):
    ...
    ValueError: samples must be an integer of at least 1, got 2.5
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return value


def require_number(value: Any, name: str) -> float:
    """Return the value if it is an integer or a float, which may be infinite or NaN.

    Raises TypeError for anything else; True and False are not accepted.

    >>> require_number(1e-3, "learning_rate")
    0.001
    >>> require_number("1e-3", "learning_rate")
    Traceback (most recent call last):
    ...
    TypeError: learning_rate must be a number, got '1e-3'
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r:.80}")
    return value
