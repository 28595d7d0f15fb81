"""JSON texts as expressions: strings, numbers, arrays, objects, and any value.

Where JSON can write a value in several ways, one is chosen, that of json.dumps with
ensure_ascii=False. Numbers, white space and nesting are bounded, because models loop in them.
Source: RFC 8259, JSON, sections 2 to 7.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from course_pkg.serving.constrained.characters import ANY, Ranges, common, complement, union, utf8
from course_pkg.serving.constrained.expression import (
    EMPTY,
    Expression,
    alternate,
    byte_range,
    concat,
    literal,
    repeat,
)
from course_pkg.serving.constrained.regex import parse

MOST_DIGITS = 15  # integers of more digits may not be exact as floating-point numbers (RFC 7493)
SHORT = {'"': '"', "\\": "\\", "\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r"}
ESCAPED = union([(0, 31), (34, 34), (92, 92)])  # control characters, " and \
UNESCAPED = complement(ESCAPED)
NUMBER = parse(
    r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?"  # at most about 1e114
)
COMMA = literal(b",")
QUOTE = literal(b'"')


class Member(NamedTuple):
    """A member of an object: its name as an expression with quotes, its value, if it must occur."""

    name: Expression
    value: Expression
    required: bool


def character(ranges: Ranges) -> Expression:
    """One character of the set, as a JSON string writes it."""
    spelled = [utf8(common(ranges, UNESCAPED))]
    for low, high in common(ranges, ESCAPED):
        for code in range(low, high + 1):
            letter = SHORT.get(chr(code))
            written = f"\\{letter}" if letter else f"\\u{code:04x}"
            spelled.append(literal(written.encode()))
    return alternate(*spelled)


def string(content: Expression | None = None) -> Expression:
    """A string in quotes; content: its characters as `character` writes them, or any."""
    return concat(QUOTE, repeat(character(ANY)) if content is None else content, QUOTE)


def integer(low: int | None = None, high: int | None = None) -> Expression:
    """An integer from low to high, both included; None bounds it by its digits alone.

    It has at most MOST_DIGITS digits, or as many as the other bound. -0 is left out.
    """
    digits = max(MOST_DIGITS, *(len(str(abs(bound))) for bound in (low or 0, high or 0)))
    low = 1 - 10**digits if low is None else low
    high = 10**digits - 1 if high is None else high
    return alternate(
        concat(literal(b"-"), _natural(max(1, -high), -low)), _natural(max(0, low), high)
    )


def _natural(low: int, high: int) -> Expression:
    """A number from low to high without leading zeros; low is at least 0."""
    lengths = range(len(str(low)), len(str(high)) + 1) if low <= high else ()
    by_length = []
    for length in lengths:
        smallest = max(low, 10 ** (length - 1) if length > 1 else 0)
        by_length.append(_between(str(smallest), str(min(high, 10**length - 1))))
    return alternate(*by_length)


def _between(low: str, high: str) -> Expression:
    """Digits from low to high, which have the same length."""
    size = len(low)
    if low == "0" * size and high == "9" * size:
        return repeat(_digit("0", "9"), size, size)
    if low[0] == high[0]:
        return concat(_digit(low[0], low[0]), _between(low[1:], high[1:]))
    branches = [
        concat(_digit(low[0], low[0]), _between(low[1:], "9" * (size - 1))),
        concat(_digit(high[0], high[0]), _between("0" * (size - 1), high[1:])),
    ]
    if int(high[0]) - int(low[0]) > 1:
        middle = _digit(str(int(low[0]) + 1), str(int(high[0]) - 1))
        branches.append(concat(middle, repeat(_digit("0", "9"), size - 1, size - 1)))
    return alternate(*branches)


def _digit(low: str, high: str) -> Expression:
    return byte_range(ord(low), ord(high))


class JsonTexts:
    """Arrays, objects and whole values; at most max_whitespace characters between their parts."""

    def __init__(self, max_whitespace: int):
        self.space = repeat(utf8(union((ord(c), ord(c)) for c in " \t\n\r")), 0, max_whitespace)

    def array(self, item: Expression, least: int = 0, most: int | None = None) -> Expression:
        """An array of `least` to `most` items; None means any number."""
        if most == 0:
            inner = self.space
        else:
            fewer = None if most is None else most - 1
            following = repeat(
                concat(COMMA, self.space, item, self.space), max(0, least - 1), fewer
            )
            inner = concat(self.space, item, self.space, following)
            if least == 0:
                inner = alternate(self.space, inner)
        return concat(literal(b"["), inner, literal(b"]"))

    def object(self, members: Sequence[Member]) -> Expression:
        """An object with these members in this order; those not required may be missing."""
        # The rest of the object after some member, and if none has come; from the end backwards.
        after = EMPTY
        first = EMPTY
        for name, value, required in reversed(members):
            colon = concat(self.space, literal(b":"), self.space)
            member = concat(name, colon, value, self.space, after)
            next_after = concat(COMMA, self.space, member)
            after = next_after if required else alternate(next_after, after)
            first = member if required else alternate(member, first)
        return concat(literal(b"{"), self.space, first, literal(b"}"))

    def object_of(self, value: Expression) -> Expression:
        """An object with any names, whose values all match one expression."""
        member = concat(string(), self.space, literal(b":"), self.space, value, self.space)
        members = concat(member, repeat(concat(COMMA, self.space, member)))
        return concat(literal(b"{"), self.space, alternate(EMPTY, members), literal(b"}"))

    def any_object(self, depth: int) -> Expression:
        """Any object that contains at most depth - 1 arrays and objects inside each other."""
        return self.object_of(self.any_value(depth - 1))

    def any_value(self, depth: int) -> Expression:
        """Any value with at most `depth` arrays and objects inside each other."""
        scalar = alternate(string(), NUMBER, *(literal(b) for b in (b"true", b"false", b"null")))
        value = scalar
        for _ in range(depth):
            value = alternate(scalar, self.array(value), self.object_of(value))
        return value

    def value(self, value: Any) -> Expression:
        """This value. Raises ValueError for NaN, infinity, or a lone surrogate."""
        if isinstance(value, list):
            parts = [self.space]
            for place, item in enumerate(value):
                if place > 0:
                    parts += [COMMA, self.space]
                parts += [self.value(item), self.space]
            return concat(literal(b"["), *parts, literal(b"]"))
        if isinstance(value, dict):
            return self.object(
                [
                    Member(self.value(name), self.value(member), True)
                    for name, member in value.items()
                ]
            )
        return literal(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
