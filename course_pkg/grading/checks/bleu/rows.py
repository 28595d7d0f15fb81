"""Comparing lists whose items have names, so that a reason can say which item differs.

Chapter: exercises.
"""

from collections.abc import Mapping
from typing import Any

from ...contract.compare import Comparator, describe_type, number


def row(items: Mapping[str, Comparator]) -> Comparator:
    """A list or tuple with one item for each name, in their order, each with its comparator.

    >>> row({"r": number(), "BP": number()})((8, 1.0), [8, 0.5])
    'BP: the number differs'
    """

    def compare(expected: Any, given: Any) -> str | None:
        if not isinstance(given, list | tuple):
            return f"{describe_type(given)} was given; wanted a list of {len(items)}"
        if len(given) != len(items):
            return f"a list of {len(given)} was given; wanted {len(items)}: {', '.join(items)}"
        for (name, comparator), want, have in zip(items.items(), expected, given, strict=True):
            if (reason := comparator(want, have)) is not None:
                return f"{name}: {reason}"
        return None

    return compare


def by_order(item: Comparator) -> Comparator:
    """A list with one item for each order from 1 to 4.

    >>> by_order(number())([5, 4, 2, 1], [5, 4, 2])
    'a list of 3 was given; wanted 4: n = 1, n = 2, n = 3, n = 4'
    """
    return row({f"n = {n}": item for n in range(1, 5)})


MATCHES_AND_TOTALS = by_order(row({"matches": number(), "n-grams in all": number()}))
