"""Recognize mistakes: the wrong answers of a question, and those that are made everywhere.

A mistake is recognized only if it gives what was given in every failing case of a property, be it
a value or an error.

Chapter: appendix/for-instructors.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

from course_pkg.grading.contract.plain_values import Array
from course_pkg.grading.contract.questions import Question, WrongAnswer

MAX_EXPLANATIONS = 2
NOT_FINITE = {"nan": 23456.0, "inf": 34560.0, "-inf": -34560.0}  # numbers that no answer gives
NEAR = 1e-2  # relative: what is given may be rounded
ROUNDED = 0.05  # relative: a number this near may be rounded too much
MAX_DECIMALS = 3
# Mistakes of scale, by name: what the given number is, as a multiple of the expected one.
FACTORS = {"a percentage": 100.0, "a share": 0.01}
SAYS = {
    "a percentage": "you gave a percentage: your number is 100 times the expected one",
    "rounded": "you rounded too much: your number is close, so give more digits",
    "a share": "you gave a share, not a percentage: your number is 1/100 of the expected one",
}

Agrees = Callable[[WrongAnswer, int], bool]  # does it give what was given for that case?


def recognized(
    losing: list[WrongAnswer], count: int, failed: list[int], agrees: Agrees
) -> tuple[str, ...]:
    """The wrong answers that give what was given in every failing case of a property.

    Of several, the one comes first that agrees with the answer in most of the `count` cases.
    """
    found = [
        (sum(agrees(wrong, index) for index in range(count)), wrong.name)
        for wrong in losing
        if all(agrees(wrong, index) for index in failed)
    ]
    most = max((agreeing for agreeing, _ in found), default=0)
    return tuple(name for agreeing, name in found if agreeing == most)[:MAX_EXPLANATIONS]


def wrong_number(pairs: Iterable[tuple[Any, Any]]) -> tuple[str, ...]:
    """The mistake if every given number is 100 times the expected one, 1/100 of it, or rounded.

    pairs: the expected and the given value of every failing case.

    >>> wrong_number([(0.25, 25), (0.5, 50.0)]), wrong_number([(45.2, 0.452)])
    (('a percentage',), ('a share',))
    >>> wrong_number([(0.5333, 0.53)]), wrong_number([(0.5333, 0.54)])
    (('rounded',), ())
    """
    pairs = list(pairs)
    if not pairs:
        return ()
    for name, factor in FACTORS.items():
        if all(_is_multiple(expected, given, factor) for expected, given in pairs):
            return (name,)
    return ("rounded",) if all(_is_rounded(*pair) for pair in pairs) else ()


def finite(value: Any) -> Any:
    """The value with other numbers for NaN and infinities, so that equal ones compare as equal.

    >>> finite((1.5, [math.nan, -math.inf])) == finite((1.5, [math.nan, -math.inf]))
    True
    """
    match value:
        case float() if not math.isfinite(value):
            return NOT_FINITE["nan" if math.isnan(value) else str(value)]
        case Array() if "float" in value.dtype:
            import numpy as np

            numbers = value.numpy()
            if np.isfinite(numbers).all():
                return value
            nan, above, below = NOT_FINITE.values()
            return Array.of(np.nan_to_num(numbers, nan=nan, posinf=above, neginf=below))
        case dict():
            return {key: finite(item) for key, item in value.items()}
        case list() | tuple():
            return type(value)(finite(item) for item in value)
    return value


def says(question: Question) -> dict[str, str]:
    """What each mistake that can be recognized in answers to a question tells the student."""
    return {wrong.name: wrong.says for wrong in question.wrong} | SAYS


def _is_rounded(expected: Any, given: Any) -> bool:
    if not isinstance(expected, float) or not isinstance(given, int | float):
        return False
    if not math.isclose(given, expected, rel_tol=ROUNDED) or (abs(given) < 5 and given % 1 == 0):
        return False  # a small whole number, such as 1 for a share, is another mistake
    return any(round(expected, digits) == given for digits in range(MAX_DECIMALS + 1))


def _is_multiple(expected: Any, given: Any, factor: float) -> bool:
    if isinstance(expected, Array) and isinstance(given, Array):
        import numpy as np

        if expected.shape != given.shape:
            return False
        right, other = (a.numpy().astype("float64") for a in (expected, given))
        return bool(right.any()) and bool(np.allclose(other, factor * right, NEAR, 0.0))
    if isinstance(given, Array) and given.shape == ():
        given = given.numpy().item()
    if not isinstance(expected, float) or not isinstance(given, int | float):
        return False  # a whole number is a count
    if not expected or not abs(given) < 1e300:
        return False
    return math.isclose(given, factor * expected, rel_tol=NEAR)
