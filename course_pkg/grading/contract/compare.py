"""Comparators: does a value that was handed in equal the expected one?

Each builder returns a function `(expected, given) -> str | None`: None when they agree, else the
reason in words. The rules are explicit: True is not 1, NaN equals nothing, an array's shape is
checked before its numbers, and the tolerance is the relative error ‖given − expected‖ / ‖expected‖.

Chapter: appendix/for-instructors.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .values import Array, encode

Comparator = Callable[[Any, Any], str | None]


def number(rtol: float = 0.0, atol: float = 0.0) -> Comparator:
    """A real number within `rtol`·|expected| + `atol`; an integer may be given as 3 or as 3.0.

    >>> number()(256, 256.0) is None
    True
    >>> number()(1, True)
    'a bool was given; wanted a number'
    """

    def compare(expected: float, given: Any) -> str | None:
        if isinstance(given, Array) and given.shape == ():
            given = given.numpy().item()
        if isinstance(given, bool) or not isinstance(given, int | float):
            return f"{describe_type(given)} was given; wanted a number"
        if isinstance(given, int) and abs(given) > 1e300:
            return "the number differs"
        if not math.isfinite(given):
            return f"{given} was given; wanted a finite number"
        if abs(given - expected) > atol + rtol * abs(expected):
            return "the number differs"
        return None

    return compare


def array(rtol: float, atol: float = 0.0, dtype: str | None = None) -> Comparator:
    """An array of the expected shape with relative error at most `rtol` (or every entry
    within `atol` where the expected array is zero). `rtol=0` asks for equal bits."""

    def compare(expected: Array, given: Any) -> str | None:
        if not isinstance(given, Array):
            return f"{describe_type(given)} was given; wanted a tensor"
        if given.shape != expected.shape:
            return f"the shape is {given.shape}; wanted {expected.shape}"
        if dtype is not None and given.dtype != dtype:
            return f"the dtype is {given.dtype}; wanted {dtype}"
        if rtol == 0.0 and atol == 0.0:
            return None if given == expected else "the values are not equal bit for bit"
        want, have = expected.numpy().astype("float64"), given.numpy().astype("float64")
        if not np.isfinite(have).all():
            return "some entries are NaN or infinite"
        error, scale = float(np.linalg.norm(have - want)), float(np.linalg.norm(want))
        if error <= rtol * scale or float(np.abs(have - want).max(initial=0.0)) <= atol:
            return None
        return f"the values differ (relative error {error / scale if scale else error:.2g})"

    return compare


def exactly() -> Comparator:
    """The same type and the same value, throughout: for text, lists of names, booleans.

    >>> exactly()(["q_proj"], ["q_proj", "v_proj"])
    'the value differs'
    """

    def compare(expected: Any, given: Any) -> str | None:
        if type(given) is not type(expected):
            return f"{describe_type(given)} was given; wanted {describe_type(expected)}"
        return None if encode(given) == encode(expected) else "the value differs"

    return compare


def parts(comparators: Mapping[str, Comparator]) -> Comparator:
    """A dict, of which only the named parts are compared, each with its own comparator."""

    def compare(expected: dict[str, Any], given: Any) -> str | None:
        if not isinstance(given, dict):
            return f"{describe_type(given)} was given; wanted a dict"
        for name, comparator in comparators.items():
            if name not in given:
                return f"{name!r} is missing"
            if (reason := comparator(expected[name], given[name])) is not None:
                return f"{name}: {reason}"
        return None

    return compare


def describe_type(value: Any) -> str:
    """What a value is, with its article, for messages.

    >>> describe_type([1]), describe_type(None)
    ('a list', 'None')
    """
    if value is None:
        return "None"
    if isinstance(value, Array):
        return f"a tensor of shape {value.shape}"
    name = {"int": "integer", "str": "text"}.get(type(value).__name__, type(value).__name__)
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
