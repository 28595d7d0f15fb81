"""Sets of characters, and how UTF-8 writes them as bytes.

A set is a tuple of ranges of code points, sorted, without overlap or surrogates. UTF-8 writes a
range as few sequences of byte ranges: U+0800 to U+FFFF, for example, as E0 [A0-BF] [80-BF],
[E1-EC] [80-BF] [80-BF], and so on.

Source: RFC 3629, UTF-8, sections 3 and 4.
"""

from collections.abc import Iterable, Iterator

from course_pkg.serving.constrained.expression import Expression, alternate, byte_range, concat

Ranges = tuple[tuple[int, int], ...]
LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
LENGTHS = (0x7F, 0x7FF, 0xFFFF, LAST)  # the last character of 1, 2, 3 and 4 bytes


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The set of all characters in these ranges, which may overlap and contain surrogates.

    Example:

        >>> union([(99, 100), (97, 98), (98, 101)])
        ((97, 101),)
    """
    merged: list[tuple[int, int]] = []
    for low, high in sorted(_without_surrogates(ranges)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """All other characters."""
    gaps = []
    start = 0
    for low, high in ranges:
        gaps.append((start, low - 1))
        start = high + 1
    gaps.append((start, LAST))
    return union(gaps)


def common(one: Ranges, other: Ranges) -> Ranges:
    """The characters that both sets have."""
    return complement(union(complement(one) + complement(other)))


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    below, above = SURROGATES[0] - 1, SURROGATES[1] + 1
    for low, high in ranges:
        for part in ((low, min(high, below)), (max(low, above), high)):
            if part[0] <= part[1]:
                yield part


ANY = complement(())


def utf8(ranges: Ranges) -> Expression:
    """One character of the set, as UTF-8."""
    return alternate(*(_sequence(*pair) for low, high in ranges for pair in _pieces(low, high)))


def _pieces(low: int, high: int) -> Iterator[tuple[bytes, bytes]]:
    """Ranges whose bytes vary independently, as the first and the last character's bytes."""
    for last in LENGTHS:
        if low <= last < high:
            yield from _pieces(low, last)
            yield from _pieces(last + 1, high)
            return
    for bits in (6, 12, 18):  # of the last one, two and three bytes
        size = 1 << bits
        if low // size == high // size:
            break
        if low % size:
            border = (low // size + 1) * size
        elif high % size != size - 1:
            border = high // size * size
        else:
            continue
        yield from _pieces(low, border - 1)
        yield from _pieces(border, high)
        return
    yield chr(low).encode(), chr(high).encode()


def _sequence(first: bytes, last: bytes) -> Expression:
    return concat(*(byte_range(low, high) for low, high in zip(first, last, strict=True)))
