"""Calls that must be refused, as one table."""

import re
from collections.abc import Callable
from typing import Any


def require_refusals(
    *rows: tuple[Any, ...],
    of: Callable[..., Any] | None = None,
    errors: type[Exception] | tuple[type[Exception], ...] = ValueError,
) -> None:
    """Call the function of each row, which must raise one of the errors with its message.

    rows: a call and a pattern that occurs in the error's type and message, as in "ValueError: k is
    0"; with `of`, the arguments of that function and the pattern.
    The failure lists every row that differs.
    """
    wrong = []
    for row in rows:
        *arguments, pattern = row
        call = of if of is not None else arguments.pop(0)
        try:
            call(*arguments)
        except errors as error:
            message = f"{type(error).__name__}: {error}"
            if not re.search(pattern, message, re.DOTALL):
                wrong.append(f"expected {pattern!r}, got {message!r}")
        else:
            wrong.append(f"expected {pattern!r}, but nothing was raised")
    assert not wrong, "\n".join(wrong)
