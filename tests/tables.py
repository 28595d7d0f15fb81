"""A test over the rows of a table."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each_row(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable:
    """As pytest.mark.parametrize, but one test: it runs every row, and shows all that fail.

    For rows that take no time and need nothing of their own, except a folder: the rows of a test
    with `tmp_path` get one each.
    """
    rows = list(rows)

    def decorate(test: Callable) -> Callable:
        signature = inspect.signature(test)
        given = (names,) if isinstance(names, str) else names
        rest = [each for name, each in signature.parameters.items() if name not in given]

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failed = []
            for number, row in enumerate(rows):
                values = dict(zip(given, (row,) if isinstance(names, str) else row, strict=True))
                if "tmp_path" in fixtures:
                    values["tmp_path"] = fixtures["tmp_path"] / f"row-{number}"
                    values["tmp_path"].mkdir()
                try:
                    test(**fixtures | values)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"row {number}: {row!r:.500}")
                    failed.append(error)
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(rows)} rows failed", failed)

        run.__signature__ = signature.replace(parameters=rest)
        return run

    return decorate
