"""Values and texts as they are shown: shortened, and on one line.

Everything that came from an answer goes through here before anybody sees it.
"""

import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from course_pkg.grading.questions.plain_values import Array

MAX_SHOWN = 500
SHOWN = 6  # entries of an array that are shown
ITEMS = 12  # items of a list
TEXT = 80  # characters of a text
LINES = 5  # of what an answer printed, before it is folded
# Names by which MathJax leaves a part of a page alone: TeX in an answer's output can make links.
NO_TEX = "tex2jax_ignore mathjax_ignore"
# Marks that turn the direction of writing, so that a text is not shown as it is read.
_TURNING = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)), "\u200e", "\u200f"}


def one_line(text: str, limit: int = MAX_SHOWN) -> str:
    """A text of at most `limit` characters on one line, without control or hidden characters.

    Example:

        >>> one_line("two\\nlines\\x1b[2J")
        'two lines�[2J'
    """
    text = text[: limit + 1]
    shown = "".join(
        " " if c in "\n\r\t" else "\ufffd" if c in _TURNING or _hidden(c) else c for c in text
    )
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def shorten(value: Any, limit: int = MAX_SHOWN) -> str:
    """A value as short text; in a dict, what is short comes first and arrays by their shape.

    A key that starts with _ is for the checks alone, and is not shown.

    Example:

        >>> shorten({"x": Array("float32", (8, 8), bytes(256)), "alpha": 2.0})
        '{alpha: 2.0, x: float32 (8, 8)}'
    """
    match value:
        case Array():
            text = _array(value)
        case dict():
            shown = [pair for pair in value.items() if not str(pair[0]).startswith("_")]
            pairs = sorted(shown, key=lambda pair: isinstance(pair[1], Array | list | dict))
            text = "{" + ", ".join(f"{k}: {_inner(v)}" for k, v in pairs) + "}"
        case list() | tuple():
            more = ", …" if len(value) > ITEMS else ""
            text = "[" + ", ".join(map(_inner, value[:ITEMS])) + more + "]"
        case float():
            text = f"{value:.10g}" if value % 1 else repr(value)
        case _:
            text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shorten_pair(expected: Any, given: Any) -> tuple[str, str, str] | None:
    """Two long values as the parts that differ first, and the place; None for short values.

    Of two arrays of numbers, that is the first entry with at least half of the largest difference.

    Example:

        >>> shorten_pair([0] * 40, [0] * 30 + [7] * 10)
        ('[…, 0, 0, 0, 0, 0, …]', '[…, 0, 0, 7, 7, 7, …]', 'item 31')
    """
    match expected, given:
        case Array(), Array() if expected.shape == given.shape and expected.numpy().size > SHOWN:
            return _array_pair(expected, given)
        case (list() | tuple(), list() | tuple()) if max(len(expected), len(given)) > ITEMS:
            shortest = min(len(expected), len(given))
            same = (str(a) == str(b) for a, b in zip(expected, given, strict=False))
            at = next((i for i, equal in enumerate(same) if not equal), shortest)
            return _window(expected, at, _inner), _window(given, at, _inner), f"item {at + 1}"
        case str(), str() if max(len(expected), len(given)) > TEXT:
            shortest = min(len(expected), len(given))
            at = next((i for i in range(shortest) if expected[i] != given[i]), shortest)
            return _text_window(expected, at), _text_window(given, at), f"character {at + 1}"
    return None


def _array_pair(expected: Array, given: Array) -> tuple[str, str, str] | None:
    import numpy as np

    right, other = (array.numpy().astype("float64").ravel() for array in (expected, given))
    distance = np.nan_to_num(np.abs(right - other), nan=np.inf, posinf=np.inf)
    if not distance.any():
        return None
    at = int(np.argmax(distance >= distance.max() / 2))
    place = [int(i) for i in np.unravel_index(at, expected.shape)]
    texts = [
        f"{array.dtype} {array.shape} {_window(array.numpy().ravel(), at, _entry)}"
        for array in (expected, given)
    ]
    return texts[0], texts[1], str(place)


def _window(values: Sequence[Any], at: int, show: Callable[[Any], str]) -> str:
    start = max(0, min(at - 2, len(values) - 5))
    shown = ", ".join(map(show, values[start : start + 5]))
    before = "…, " if start else ""
    after = ", …" if start + 5 < len(values) else ""
    return f"[{before}{shown}{after}]"[:MAX_SHOWN]


def _text_window(text: str, at: int) -> str:
    start = max(0, at - TEXT // 2)
    before = "…" if start else ""
    after = "…" if start + TEXT < len(text) else ""
    return f"{before}{text[start : start + TEXT]!r}{after}"


def first_lines(text: str) -> str:
    """The first lines of what an answer printed, and how many more there are."""
    lines = text.splitlines()
    more = len(lines) - LINES
    last = [f"[… {more} more line]" if more == 1 else f"[… {more} more lines]"] if more > 0 else []
    return "\n".join(lines[:LINES] + last)


def mark(earned: bool) -> str:
    """The sign before a property."""
    return "✓" if earned else "✗"


def _hidden(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def _inner(value: Any) -> str:
    if isinstance(value, Array) and value.numpy().size > SHOWN:
        return f"{value.dtype} {value.shape}"
    return shorten(value, 200)


def _array(value: Array) -> str:
    numbers = value.numpy().ravel()[:SHOWN]
    shown = ", ".join(map(_entry, numbers))
    if value.shape == ():
        return shown
    more = ", …" if value.numpy().size > SHOWN else ""
    return f"{value.dtype} {value.shape} [{shown}{more}]"


def _entry(number: Any) -> str:
    number = number.item()
    return f"{number:.5g}" if isinstance(number, float) and number else str(number)
