"""What every metric asks of its texts: that they are strings, and how many may be given at once.

A string is a sequence of strings too, so a text in the place of a list, or a list in the place of
a text, would be scored letter by letter and look like a result. These checks come first.

Source: none, checks. Chapter: metrics/comparison.
"""

from collections.abc import Iterable, Mapping
from typing import Any


def require_string(value: Any, name: str = "a text", mend: str = "") -> str:
    """The value, if it is a string, empty or not.

    name: what the value is, for the message. mend: what to do about another value, if more is to
    be said. Raises TypeError if it is none.
    Source: none, a check.

    >>> require_string("the cat sat")
    'the cat sat'
    >>> require_string(["the", "cat"], "hypothesis", "join the tokens by spaces")
    Traceback (most recent call last):
    ...
    TypeError: hypothesis must be a string, got ['the', 'cat'] (list); join the tokens by spaces
    """
    if not isinstance(value, str):
        said = f"{name} must be a string, got {value!r:.80} ({type(value).__name__})"
        raise TypeError(f"{said}; {mend}" if mend else said)
    return value


def text_list(texts: str | Iterable[str], name: str = "text") -> list[str]:
    """One text or several, as a list of strings; any of them may be empty.

    name: what each of them is, for the messages.
    Raises TypeError for anything else, ValueError if there is none.
    Source: none, a check.

    >>> text_list("the cat sat")
    ['the cat sat']
    >>> text_list(line.strip() for line in (" the cat", "sat "))
    ['the cat', 'sat']
    >>> text_list([], "reference")
    Traceback (most recent call last):
    ...
    ValueError: there is no reference: references is empty; give one text at least, if an empty one
    """
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable):
        raise TypeError(
            f"{name}s must be a string, or a list of strings, "
            f"got {texts!r:.80} ({type(texts).__name__})"
        )
    listed = [require_string(text, f"{name} {number}") for number, text in enumerate(texts)]
    if not listed:
        raise ValueError(
            f"there is no {name}: {name}s is empty; give one text at least, if an empty one"
        )
    return listed
