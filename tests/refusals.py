"""Tables of calls that must be refused, each in one test."""

import re
from collections.abc import Callable, Iterable


def wrong_refusals(rows: Iterable[tuple[Callable, type, str]]) -> list[str]:
    """Of rows (call, error, pattern of its message): what is wrong in those that are not so."""
    wrong = []
    for number, (call, error, pattern) in enumerate(rows):
        row = f"row {number}, {error.__name__} {pattern!r}"
        try:
            call()
        except Exception as raised:
            if not isinstance(raised, error) or not re.search(pattern, str(raised)):
                wrong.append(f"{row}: got {type(raised).__name__}: {raised}")
        else:
            wrong.append(f"{row}: nothing was raised")
    return wrong
