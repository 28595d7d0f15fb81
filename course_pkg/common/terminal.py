"""Texts on a terminal: of others, where what it would obey is shown instead; and durations.

Control characters in an answer or a name can erase what stands above, or type into the terminal.
"""

import math
import re

# Control characters but tab and line break, the marks that turn text around (Unicode TR 9), the
# two separators that end lines elsewhere, and halves of surrogate pairs, which can't be printed.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def for_terminal(text: str) -> str:
    r"""The text with an escape in place of each character that a terminal would obey.

    >>> for_terminal("é\tred: \x1b[31m\r\n")
    'é\tred: \\x1b[31m\n'
    """
    return _OBEYED.sub(lambda match: ascii(match[0])[1:-1], text.replace("\r\n", "\n"))


def duration_in_words(seconds: float) -> str:
    """A duration as one would say it.

    >>> [duration_in_words(s) for s in (4, 42, 100, 3_000, 4_000, 36_000)]
    ['10 s', '40 s', '2 min', '50 min', '1 h 5 min', '10 h']
    """
    if seconds < 55:
        return f"{max(10, 10 * round(seconds / 10))} s"
    minutes = math.ceil(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    minutes = 5 * round(seconds / 300)
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
