"""Values and texts as they are shown: shortened, on one line, and escaped.

Everything that came from an answer goes through here before anybody sees it.

Chapter: appendix/for-instructors.
"""

import html
import unicodedata
from collections.abc import Iterable
from typing import Any

from .values import Array

MAX_SHOWN = 500
LINES = 5  # of what an answer printed, before it is folded
# Both names by which MathJax is told to leave a part of a page alone: what a student's code gave
# may hold dollar signs, and TeX can make links.
NO_TEX = "tex2jax_ignore mathjax_ignore"
# The marks that turn the direction of writing; a text with them is not shown as it is read.
_TURNING = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)), "\u200e", "\u200f"}


def one_line(text: str, limit: int = MAX_SHOWN) -> str:
    """A text from outside as one line: control characters and hidden marks are replaced.

    limit: characters that are kept.

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
            more = ", …" if len(value) > 12 else ""
            text = "[" + ", ".join(map(_inner, value[:12])) + more + "]"
        case float():
            text = f"{value:.10g}" if value % 1 else repr(value)
        case _:
            text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def first_lines(text: str) -> str:
    """The first lines of what an answer printed, and how many more there are.

    >>> first_lines("1\\n2\\n3\\n4\\n5\\n6\\n7\\n").splitlines()[-1]
    '[… 2 more lines]'
    """
    lines = text.splitlines()
    more = len(lines) - LINES
    return "\n".join(
        lines[:LINES] + ([f"[… {more} more line{'s' * (more > 1)}]"] if more > 0 else [])
    )


def folded(text: str) -> str:
    """What an answer printed as HTML that is folded, if `first_lines` does not show all of it."""
    count = len(text.splitlines())
    if count <= LINES:
        return ""
    summary = f"<summary>what your answer printed: {count} lines</summary>"
    return f"<details class='{NO_TEX}'>{summary}<pre>{html.escape(text)}</pre></details>"


def mark(earned: bool) -> str:
    """The sign before a property.

    >>> mark(True)
    '✓'
    """
    return "✓" if earned else "✗"


def html_table(heading: str, rows: Iterable[tuple[bool, str, str, list[tuple[str, str]]]]) -> str:
    """A report as HTML; every text is escaped.

    rows: for each property whether it was earned, what it says, its points, and its details.
    """
    body = []
    for earned, says, points, details in rows:
        below = "".join(
            f"<div style='margin-left:1em'><b>{html.escape(label)}</b> {html.escape(text)}</div>"
            for label, text in details
        )
        body.append(
            f"<tr><td style='vertical-align:top'>{mark(earned)}</td>"
            f"<td style='text-align:left'>{html.escape(says)}{below}</td>"
            f"<td style='vertical-align:top'>{html.escape(points)}</td></tr>"
        )
    head = f"<table class='course-report {NO_TEX}'><caption><b>{html.escape(heading)}</b></caption>"
    return f"{head}{''.join(body)}</table>"


def _hidden(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def _inner(value: Any) -> str:
    if isinstance(value, Array) and value.numpy().size > 6:
        return f"{value.dtype} {value.shape}"
    return shorten(value, 200)


def _array(value: Array) -> str:
    numbers = value.numpy().ravel()[:6].tolist()
    shown = ", ".join(f"{n:.5g}" if isinstance(n, float) and n else str(n) for n in numbers)
    if value.shape == ():
        return shown
    more = ", …" if value.numpy().size > 6 else ""
    return f"{value.dtype} {value.shape} [{shown}{more}]"
