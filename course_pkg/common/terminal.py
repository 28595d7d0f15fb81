"""Texts that others wrote, on a terminal: what it would obey is shown instead.

A model's answer, a server's error or a name in a file may hold control characters. A terminal obeys
them: they can erase what stands above, change its title, or type into it.
Chapter: setup.
"""

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
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text.replace("\r\n", "\n"))
