"""Comparators: does a given value equal the expected one?

A comparator is a function `(expected, given) -> str | None`: None if they agree, otherwise the
reason in words; a `Difference` if it is one field of a structure that differs. True is not 1, and
NaN equals nothing. `comparator` builds one from what `questions.toml` says.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from course_pkg.common.files import readable_size
from course_pkg.grading.questions.plain_values import Array, encode

Comparator = Callable[[Any, Any], str | None]
PRINTED = "did you print the result instead of returning it?"
ROOM = 256 * 1024  # bytes that a value may have, plus 8 times as many as the expected one
EQUAL = 1e-6  # between two numbers that `whether` takes for the same
MAX_ERROR = 1_000  # characters of an error that are kept


class Difference(str):
    """A reason, with the expected and the given value of the innermost field that differs."""

    expected: Any
    given: Any
    is_form: bool  # whether the reason is a WrongForm

    @classmethod
    def at(cls, name: str, reason: str, expected: Any, given: Any) -> "Difference":
        """The difference in the field of that name."""
        difference = cls(f"{name}: {reason}")
        inner = isinstance(reason, cls)
        difference.expected = reason.expected if inner else expected
        difference.given = reason.given if inner else given
        difference.is_form = is_form(reason)
        return difference


class WrongForm(str):
    """A reason that says all: the type, the shape or the length is wrong, not the value."""


def number(rtol: float = 0.0, atol: float = 0.0, *, integer: bool = False) -> Comparator:
    """A real number within ``rtol * |expected| + atol``. 3.0 is as good as 3, unless `integer`.

    Example:

        >>> number()(1, True)
        'expected a number, but a bool was given'
    """

    def compare(expected: float, given: Any) -> str | None:
        if isinstance(given, Array) and given.shape == ():
            given = given.numpy().item()
        if isinstance(given, bool) or not isinstance(given, int | float):
            return wrong_type("a number", given)
        if integer and not isinstance(given, int):
            return wrong_type("an integer", given)
        if isinstance(given, int) and abs(given) > 1e300:
            return "the number differs"
        if not math.isfinite(given):
            return WrongForm(f"expected a finite number, but {given} was given")
        if abs(given - expected) > atol + rtol * abs(expected):
            return "the number differs"
        return None

    return compare


def whether(equals: float) -> Comparator:
    """A number, of which only matters whether it is that one: 0 for an empty text, and not else.

    Example:

        >>> whether(0)(0.25, 0.5), whether(0)(0.25, 0.0)
        (None, 'the number differs')
    """
    is_number = number(atol=math.inf)

    def compare(expected: float, given: Any) -> str | None:
        if (reason := is_number(expected, given)) is not None:
            return reason
        if isinstance(given, Array):
            given = given.numpy().item()
        same = (abs(given - equals) <= EQUAL) == (abs(expected - equals) <= EQUAL)
        return None if same else "the number differs"

    return compare


def array(
    rtol: float = 0.0, atol: float = 0.0, dtype: str | None = None, *, integer: bool = False
) -> Comparator:
    """An array of the same shape with ‖given − expected‖ / ‖expected‖ of at most `rtol`.

    It also agrees if each of its entries is within `atol`. If both are 0, every bit must be equal.
    dtype: the name that it must have, such as "float32"; integer: any integer dtype.
    """

    def compare(expected: Array, given: Any) -> str | None:
        import numpy as np

        if not isinstance(given, Array):
            return wrong_type("a tensor", given)
        if given.shape != expected.shape:
            return WrongForm(f"expected the shape {expected.shape}, but {given.shape} was given")
        if dtype is not None and given.dtype != dtype:
            return WrongForm(f"expected the dtype {dtype}, but {given.dtype} was given")
        if integer and "int" not in given.dtype:
            return WrongForm(f"expected an integer dtype, but {given.dtype} was given")
        if expected.dtype == given.dtype == "bool":
            return None if given == expected else "the value differs"
        if rtol == 0.0 and atol == 0.0:
            return None if given == expected else "the values are not equal bit for bit"
        right, other = (one.numpy().astype("float64") for one in (expected, given))
        if not np.isfinite(other).all():
            return "some entries are NaN or infinite"
        error = float(np.linalg.norm(other - right))
        scale = float(np.linalg.norm(right))
        if error <= rtol * scale or float(np.abs(other - right).max(initial=0.0)) <= atol:
            return None
        return f"the values differ (relative error {error / scale if scale else error:.2g})"

    return compare


def exactly() -> Comparator:
    """The same type and value at every level, for text, names, booleans; tuples count as lists."""

    def compare(expected: Any, given: Any) -> str | None:
        expected, given = _with_lists(expected), _with_lists(given)
        if type(given) is not type(expected):
            return wrong_type(describe_type(expected), given)
        return None if encode(given) == encode(expected) else "the value differs"

    return compare


def _with_lists(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_with_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return value


def row(
    items: Mapping[str, Comparator] | None = None,
    each: Comparator | None = None,
    names: Sequence[str] = (),
) -> Comparator:
    """A list or tuple: named items, each with its comparator, or any number that share one.

    Args:
        items: what each item is called, in order.
        each: the comparator of every item, instead.
        names: with `each`, what the items are called; without, there must be as many as expected.
    """
    items = items or dict.fromkeys(names, each)

    def compare(expected: Any, given: Any) -> str | None:
        count = len(items or expected)
        called = f" ({', '.join(items)})" if items else ""
        if not isinstance(given, list | tuple):
            return wrong_type(f"a list of {count}{called}", given)
        if len(given) != count:
            wanted = f"expected a list of {count}{called}"
            return WrongForm(f"{wanted}, but a list of {len(given)} was given")
        named = items or {f"item {i}": each for i in range(1, count + 1)}
        for (name, comparator), right, other in zip(named.items(), expected, given, strict=True):
            if (reason := comparator(right, other)) is not None:
                return Difference.at(name, reason, right, other)
        return None

    return compare


def parts(parts: Mapping[str, Comparator]) -> Comparator:
    """A dict; only the named parts are compared, each with its own comparator."""

    def compare(expected: dict[str, Any], given: Any) -> str | None:
        if not isinstance(given, dict):
            return wrong_type("a dict", given)
        for name, comparator in parts.items():
            if name not in given:
                return WrongForm(f"{name!r} is missing")
            if (reason := comparator(expected[name], given[name])) is not None:
                return Difference.at(name, reason, expected[name], given[name])
        return None

    return compare


def anything() -> Comparator:
    """Every value: for an item of a `row` that a property does not look at."""
    return lambda expected, given: None


_BUILDERS = (number, whether, array, exactly, row, parts, anything)
BUILDERS = {build.__name__: build for build in _BUILDERS}


def comparator(spec: Mapping[str, Any], cases: Any = None) -> Comparator:
    """The comparator that `{kind = …, option = …}` describes; a function of `cases` by name.

    An unknown kind raises ValueError, an option TypeError, a function AttributeError.
    """
    options = dict(spec)
    kind = options.pop("kind", None)
    if kind == "cases":
        return getattr(cases, options["name"])
    if kind not in BUILDERS:
        raise ValueError(f"kind is {kind!r}; expected one of {', '.join([*BUILDERS, 'cases'])}")
    for group in ("items", "parts"):
        if group in options:
            inner = options[group]
            options[group] = {name: comparator(one, cases) for name, one in inner.items()}
    if "each" in options:
        options["each"] = comparator(options["each"], cases)
    return BUILDERS[kind](**options)


def wrong_type(expected: str, given: Any) -> WrongForm:
    """A message that a value of another type was expected; for None, how that happens."""
    text = f"expected {expected}, but {describe_type(given)} was given"
    return WrongForm(f"{text}: {PRINTED}" if given is None else text)


def describe_type(value: Any) -> str:
    """What a value is, with its article: "a list", "a tensor of shape (2, 3)", "None"."""
    if value is None:
        return "None"
    if isinstance(value, Array):
        return f"a tensor of shape {value.shape}"
    name = {"int": "integer", "str": "text"}.get(type(value).__name__, type(value).__name__)
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def value_bytes(value: Any) -> int:
    """About how many bytes a plain value takes."""
    match value:
        case Array():
            return 16 + len(value.data)
        case str():
            return 16 + 2 * len(value)
        case bytes():
            return 16 + len(value)
        case list() | tuple():
            return 16 + sum(map(value_bytes, value))
        case dict():
            return 16 + sum(value_bytes(key) + value_bytes(item) for key, item in value.items())
        case int() if not isinstance(value, bool):
            return 16 + value.bit_length() // 8
    return 16


def is_form(reason: str) -> bool:
    """Whether a reason says that the form of a value is wrong, at any depth."""
    return isinstance(reason, WrongForm) or getattr(reason, "is_form", False)


def within_size(outcome: Any, expected: Any, room: int = ROOM) -> dict[str, Any]:
    """An outcome with nothing but what is judged; a value far larger than `expected` is an error.

    room: bytes that the value may have, in any case.
    """
    match outcome:
        case {"unanswered": True}:
            return {"unanswered": True}
        case {"error": str(message)}:
            return {"error": message[:MAX_ERROR]}
        case {"value": given}:
            given_size = value_bytes(given)
            right_size = value_bytes(expected)
            if given_size <= room + 8 * right_size:
                return {"value": given}
            text = (
                f"your answer is far too large: {describe_type(given)} of about "
                f"{readable_size(given_size)} was given; expected about {readable_size(right_size)}"
            )
            return {"error": text}
    return {}
