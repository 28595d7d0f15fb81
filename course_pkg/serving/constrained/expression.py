"""Languages of bytes: regular expressions with intersection, and their derivatives.

The derivative of a language by a byte is what may follow that byte. So the states of an automaton
are expressions: each says what may still come. JSON Schema needs intersection, for a pattern with a
maximum length. Equal expressions are one object (`_interned`).

Sources: Brzozowski (1964), Derivatives of regular expressions; Owens, Reppy and Turon (2009),
Regular-expression derivatives re-examined.
"""

from collections.abc import Iterable
from weakref import WeakValueDictionary

BYTES, CONCAT, ALTERNATE, INTERSECT, REPEAT = "bytes", "concat", "alternate", "intersect", "repeat"
ALL_BYTES = (1 << 256) - 1


class Expression:
    """A language of byte strings. Make one with the functions of this module.

    Attributes:
        kind, parts: "bytes" (a mask of 256 bits: one byte of these), "concat" (first, rest),
            "alternate" and "intersect" (a frozenset of expressions), "repeat" (inner, least, most
            or None).
        nullable: whether the empty string belongs to it.
    """

    __slots__ = ("__weakref__", "kind", "nullable", "parts")

    def __init__(self, kind: str, parts: tuple | frozenset, nullable: bool):
        self.kind = kind
        self.parts = parts
        self.nullable = nullable

    def __repr__(self) -> str:
        if self.kind == BYTES:
            return f"bytes({self.parts[0]:#x})"
        return f"{self.kind}({', '.join(map(repr, self.parts))})"


_known: WeakValueDictionary[tuple, Expression] = WeakValueDictionary()


def _interned(kind: str, parts: tuple | frozenset, nullable: bool) -> Expression:
    known = _known.get((kind, parts))
    if known is None:
        known = _known[kind, parts] = Expression(kind, parts, nullable)
    return known


def one_byte(mask: int) -> Expression:
    """One byte b for which bit b of the mask is set."""
    return _interned(BYTES, (mask,), False)


NOTHING = one_byte(0)  # no string at all
EMPTY = _interned(REPEAT, (NOTHING, 0, 0), True)  # the empty string alone


def byte_range(low: int, high: int) -> Expression:
    """One byte from low to high, both included."""
    return one_byte((1 << (high + 1)) - (1 << low))


def literal(data: bytes) -> Expression:
    """This string alone."""
    return concat(*(one_byte(1 << byte) for byte in data))


def concat(*parts: Expression) -> Expression:
    """A string of each part, one after the other."""
    singles: list[Expression] = []
    for part in parts:
        while part.kind == CONCAT:
            first, part = part.parts
            singles.append(first)
        singles.append(part)
    if NOTHING in singles:
        return NOTHING
    result = EMPTY
    for part in reversed(singles):
        if part is EMPTY:
            continue
        if result is EMPTY:
            result = part
        else:
            result = _interned(CONCAT, (part, result), part.nullable and result.nullable)
    return result


def alternate(*parts: Expression) -> Expression:
    """A string of any of the parts."""
    mask = 0
    others = set()
    for part in _flat(ALTERNATE, parts):
        if part.kind == BYTES:
            mask |= part.parts[0]
        else:
            others.add(part)
    if mask:
        others.add(one_byte(mask))
    if any(part.nullable and part is not EMPTY for part in others):
        others.discard(EMPTY)
    if not others:
        return NOTHING
    if len(others) == 1:
        return others.pop()
    return _interned(ALTERNATE, frozenset(others), any(part.nullable for part in others))


def intersect(*parts: Expression) -> Expression:
    """A string that belongs to all parts (at least one)."""
    mask = ALL_BYTES
    others = set()
    for part in _flat(INTERSECT, parts):
        if part.kind == BYTES:
            mask &= part.parts[0]
        else:
            others.add(part)
    if mask != ALL_BYTES:
        others.add(one_byte(mask))
    if NOTHING in others:
        return NOTHING
    nullable = all(part.nullable for part in others)
    if EMPTY in others:
        return EMPTY if nullable else NOTHING
    if len(others) == 1:
        return others.pop()
    return _interned(INTERSECT, frozenset(others), nullable)


def repeat(inner: Expression, least: int = 0, most: int | None = None) -> Expression:
    """From `least` to `most` strings of the inner expression in a row; None means any number."""
    if inner.nullable:
        least = 0  # the others may be empty
    if inner in (EMPTY, NOTHING):
        return EMPTY if least == 0 else NOTHING
    if most == 0:
        return EMPTY
    if least == most == 1:
        return inner
    if least == 0 and inner.kind == REPEAT and inner.parts[1:] == (0, None):
        return inner
    return _interned(REPEAT, (inner, least, most), least == 0)


def _flat(kind: str, parts: Iterable[Expression]) -> Iterable[Expression]:
    for part in parts:
        if part.kind == kind:
            yield from part.parts
        else:
            yield part


class Derivatives:
    """Derivatives and classes of bytes, each computed once. work: how many parts were looked at."""

    def __init__(self) -> None:
        self._derivatives: dict[tuple[Expression, int], Expression] = {}
        self._classes: dict[Expression, frozenset[int]] = {}
        self.work = 0

    def by(self, expression: Expression, byte: int) -> Expression:
        """The strings that may follow this byte."""
        derivative = self._derivatives.get((expression, byte))
        if derivative is None:
            derivative = self._derivatives[expression, byte] = self._by(expression, byte)
        return derivative

    def _by(self, expression: Expression, byte: int) -> Expression:
        parts = expression.parts
        self.work += len(parts)
        if expression.kind == BYTES:
            return EMPTY if parts[0] >> byte & 1 else NOTHING
        if expression.kind == CONCAT:
            first, rest = parts
            after = concat(self.by(first, byte), rest)
            return alternate(after, self.by(rest, byte)) if first.nullable else after
        if expression.kind == ALTERNATE:
            return alternate(*(self.by(part, byte) for part in parts))
        if expression.kind == INTERSECT:
            return intersect(*(self.by(part, byte) for part in parts))
        inner, least, most = parts
        fewer = repeat(inner, max(0, least - 1), None if most is None else most - 1)
        return concat(self.by(inner, byte), fewer) if most != 0 else NOTHING

    def classes(self, expression: Expression) -> frozenset[int]:
        """Masks that divide the 256 bytes; the derivative is the same by all bytes of a mask."""
        masks = self._classes.get(expression)
        if masks is None:
            masks = self._classes[expression] = self._divide(expression)
        return masks

    def _divide(self, expression: Expression) -> frozenset[int]:
        parts = expression.parts
        self.work += len(parts)
        if expression.kind == BYTES:
            return frozenset({parts[0], ALL_BYTES ^ parts[0]} - {0})
        if expression.kind == REPEAT:
            return self.classes(parts[0])
        if expression.kind == CONCAT and not parts[0].nullable:
            return self.classes(parts[0])
        divided = {ALL_BYTES}
        for part in parts:
            finer = self.classes(part)
            divided = {ours & theirs for ours in divided for theirs in finer} - {0}
        return frozenset(divided)


def matches(expression: Expression, data: bytes) -> bool:
    """Whether the whole string belongs to the language: the definition, one derivative a byte."""
    derivatives = Derivatives()
    for byte in data:
        expression = derivatives.by(expression, byte)
    return expression.nullable
