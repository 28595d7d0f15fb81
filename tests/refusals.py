"""Calls that must be refused, as one table."""

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

Errors = type[Exception] | tuple[type[Exception], ...]


def wrong_refusals(rows: Iterable[tuple[Callable[[], Any], Errors, str]]) -> list[str]:
    """Of rows (call, errors, pattern): what is wrong in those that are not so.

    pattern: occurs in the error's type and message, as in "ValueError: k is 0".
    """
    wrong = []
    for number, (call, errors, pattern) in enumerate(rows):
        try:
            call()
        except errors as raised:
            message = f"{type(raised).__name__}: {raised}"
            if not re.search(pattern, message, re.DOTALL):
                wrong.append(f"row {number}: expected {pattern!r}, got {message!r}")
        except Exception as raised:
            wrong.append(f"row {number}, {pattern!r}: {type(raised).__name__}: {raised}")
        else:
            wrong.append(f"row {number}: expected {pattern!r}, but nothing was raised")
    return wrong


def require_refusals(
    *rows: tuple[Any, ...], of: Callable[..., Any] | None = None, errors: Errors = ValueError
) -> None:
    """Call the function of each row, which must raise one of the errors with its message.

    rows: a call and a pattern as in `wrong_refusals`; with `of`, the arguments of that function
    and the pattern. The failure lists every row that differs.
    """
    table = []
    for row in rows:
        *arguments, pattern = row
        call = of if of is not None else arguments.pop(0)
        table.append((functools.partial(call, *arguments), errors, pattern))
    wrong = wrong_refusals(table)
    assert not wrong, "\n".join(wrong)
